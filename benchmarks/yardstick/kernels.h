// The kernels of the yardstick: no more than the benchmark's three workloads need.
//
// They are plain on purpose: one way to do each thing, for processors with AVX2 and FMA, and pixels
// that are near to torchvision's and not equal.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

struct Window {
  int top, left, height, width;
};

struct Pixels {
  std::vector<uint8_t> bytes;  // RGB, rows packed, with room after the last
  int height = 0, width = 0;
};

constexpr int kRoom = 64;  // bytes after the pixels that a kernel may read

struct Size {
  int height, width;
};

// A decoder of JPEGs, which a thread keeps.
class Decoder {
 public:
  Decoder();
  ~Decoder();
  Size read_size(const std::vector<uint8_t>& file);

  // Decodes a window of the file whose size was read last.
  void decode(Window window, Pixels* pixels);

 private:
  struct State;
  State* state_;
};

// Values are level * scale + offset, by channel.
struct Floats {
  float scale[3], offset[3];
};

// Warps with bilinear interpolation to planes of floats; outside of the source is level 0.
// matrix takes (column, row, 1) of the output to the source.
void warp(const Pixels& source, const float matrix[6], int height, int width, const Floats& floats,
          float* planes);

// Resizes with an antialiasing linear filter to `size`, and writes its window to planes of floats.
void resize(const Pixels& source, Size size, Window window, bool flips, const Floats& floats,
            float* planes);
