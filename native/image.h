// An image in memory: what stages pass on, and what kernels read.
#pragma once

#include <cstddef>
#include <cstdint>

namespace gpupipe {

struct FloatChange;

constexpr int kChannels = 3;  // of RGB
constexpr int kMaxChannels = 4;

// Pixels of one side of an image. Indices of pixels and bytes of a row then fit 32 bits.
constexpr int64_t kMaxSide = 1 << 20;

// Interleaved pixels, with `stride` bytes from row to row. The pixels of a row are packed.
//
// Pixels may also be planes, one for each channel. Only stages that take planes see those.
//
// A file that is not decoded yet is an image of one row whose `channels` is 0: `width` bytes.
struct Image {
  uint8_t* pixels = nullptr;
  int64_t stride = 0;
  int height = 0, width = 0;
  int channels = kChannels;  // 1 to 4; 0 for the bytes of a file
  int item_size = 1;         // bytes of a value: 1 for uint8, 4 for float32
  bool is_writable = false;  // memory of an arena; false for memory of a file, a cache or a user

  static constexpr int64_t kInterleaved = INT64_MIN;
  int64_t plane = kInterleaved;  // bytes from plane to plane; 0 if all planes are the same one

  // Changes of colours that are still to be made. Only stages that take them see them: of uint8 the
  // new level of each of 256 levels, or null; of float32 so many changes of each pixel.
  const uint8_t* table = nullptr;
  const FloatChange* changes = nullptr;
  int num_changes = 0;

  bool has_planes() const { return plane != kInterleaved; }

  // Bytes from a pixel of a row to the next.
  int pixel_size() const { return (has_planes() ? 1 : channels) * item_size; }
  int64_t row_size() const { return int64_t{width} * pixel_size(); }

  // The number of bytes from the first to the last, of one plane if there are several.
  int64_t size() const { return (height - 1) * stride + row_size(); }

  uint8_t* row(int64_t n) const { return pixels + n * stride; }

  // The images whose pixels are one piece: the planes, or the image itself.
  int pieces() const { return has_planes() ? channels : 1; }
  Image piece(int n) const {
    Image one = *this;
    if (has_planes()) one.pixels += n * plane, one.plane = kInterleaved, one.channels = 1;
    return one;
  }
};

// Returns columns of an image, without a copy.
inline Image crop_columns(const Image& image, int64_t first, int64_t count) {
  Image part = image;
  part.pixels += first * image.pixel_size(), part.width = int(count);
  return part;
}

constexpr int kRowsAhead = 16;  // that are fetched before they are read

// Fetches a row of an image, or of each plane, if there is one. Processors fetch ahead only what is
// read in order, and only within a page of memory. GCC drops calls of functions that only fetch:
// this one is part of its callers.
__attribute__((always_inline)) inline void fetch_row(const Image& image, int row) {
  if (row < 0 || row >= image.height) return;
  const int64_t size = image.row_size();
  for (int k = 0; k < image.pieces(); ++k) {
    const uint8_t* const bytes = image.piece(k).row(row);
    for (int64_t n = 0; n < size; n += 64) __builtin_prefetch(bytes + n, 0, 2);
  }
}

}  // namespace gpupipe
