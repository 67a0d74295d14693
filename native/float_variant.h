// The functions for images of float32 that each variant has: see float_rows.h.
#pragma once

#include <cstdint>
#include <vector>

namespace gpupipe {

struct Conversion;
struct Warp;

// One axis of a resize of floats: as Taps, but all outputs have as many inputs, and their weights
// are not rounded.
struct FloatTaps {
  int count;  // of outputs
  int size;   // inputs of each output, of which some may have a weight of 0
  std::vector<int32_t> first;
  std::vector<float> weights;  // (count, size)
};

// Rows are interleaved pixels of 1 to 4 channels. Up to kFloatSlack values more may be written, and
// read where a row is the output of another function.
constexpr int kFloatSlack = 16;

// A change of the colours of pixels. Of the last kinds, it needs RGB.
struct FloatChange {
  enum Kind { kScale, kInvert, kSolarize, kSaturation, kHue, kGray } kind;
  float factor, offset;  // the threshold or the turn is the factor
};

constexpr int kFloatPart = 512;  // pixels of a part of a row: what stays of it in the first cache

struct FloatVariant {
  // Warps rows of the output, of which each begins `step` values after the one before it.
  void (*warp_rows)(const Warp& warp, int row, int rows, int width, float* pixels, int64_t step);

  // Sums `count` rows of `size` values, weighted. Reads nothing after them.
  void (*blend_rows)(const float* const rows[], const float* weights, int count, int64_t size,
                     float* sums);

  // Resizes one row.
  void (*resize_columns)(const FloatTaps& taps, const float* pixels, int channels, float* to);

  // Changes at most kFloatPart pixels, one change after the other. `to` may be `from`. If it is
  // null, returns the sum of the luma.
  double (*change_colors)(const FloatChange* changes, int size, const float* from, float* to,
                          int channels, int count);

  // Computes (value - mean) / std of `count` values, from channel 0 on.
  void (*normalize)(const float* from, float* to, int64_t count, const Conversion& conversion);
};

extern const FloatVariant kFloatBase;
#if defined(__x86_64__)
extern const FloatVariant kFloatAvx2;
#endif

}  // namespace gpupipe
