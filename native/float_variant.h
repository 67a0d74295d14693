// The functions for images of float32 that each variant has: see float_rows.h.
#pragma once

#include <cmath>
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

// A change of the colours of pixels. From kSaturation on, it needs RGB.
struct FloatChange {
  enum Kind {
    kScale,  // factor * value + offset
    kInvert,
    kSolarize,
    kGamma,      // value to the power of the factor
    kStretch,    // (value - low) / range of each channel, from 0 to 1
    kNormalize,  // the same without limits
    kToRgb,      // of one channel
    kSaturation,
    kHue,
    kGray,
    kToGray,
    kPermute
  } kind;
  float factor = 0, offset = 0;  // the threshold or the turn is the factor
  float low[3] = {}, range[3] = {};
  int order[3] = {};  // the input's channel for each channel
};

// What is known of the pixels of an image: the sum of the luma, that of all values, and the
// extremes of each channel, which are NaN if a value is.
struct FloatStatistics {
  enum Kind { kLuma, kValues, kExtremes } kind;
  double sum = 0;
  float low[3] = {HUGE_VALF, HUGE_VALF, HUGE_VALF};
  float high[3] = {-HUGE_VALF, -HUGE_VALF, -HUGE_VALF};
};

// Pixels of a row, or of packed rows, of 1 or 3 channels, and where they go: nowhere if `to` is
// null. It may be `from`. Pixels are interleaved if `plane` is 0; else it is the number of values from
// plane to plane. They are written past the cache if `is_streamed`: see FloatVariant::stream.
struct FloatPart {
  const float* from;
  int64_t from_plane;
  float* to;
  int64_t to_plane;
  int channels;
  int64_t count;
  bool is_streamed;
  FloatStatistics* statistics;  // to which the changed pixels are added; or null
};

struct FloatVariant {
  // Warps rows of the output, of which each begins `step` values after the one before it.
  void (*warp_rows)(const Warp& warp, int row, int rows, int width, float* pixels, int64_t step);

  // Sums `count` rows of `size` values, weighted. Reads nothing after them.
  void (*blend_rows)(const float* const rows[], const float* weights, int count, int64_t size,
                     float* sums);

  // Resizes one row.
  void (*resize_columns)(const FloatTaps& taps, const float* pixels, int channels, float* to);

  // Makes changes, one after the other.
  void (*change_colors)(const FloatChange* changes, int size, const FloatPart& part);

  // Takes interleaved pixels of 2 to 4 channels apart, and puts them together.
  void (*split)(const float* pixels, float* const planes[], int channels, int count,
                bool is_reversed);
  void (*merge)(const float* const planes[], float* pixels, int channels, int count);

  // Copies pixels of 1 to 4 values of four bytes, the last one first. They may begin anywhere.
  void (*reverse)(const uint8_t* pixels, uint8_t* to, int values, int count);

  // Computes (value - mean) / std of `count` values, from channel 0 on.
  void (*normalize)(const float* from, float* to, int64_t count, const Conversion& conversion);

  // Copies values past the cache: a batch is larger than the cache, and a line that is not there
  // would be read before it is written.
  void (*stream)(const float* from, float* to, int64_t count);
};

extern const FloatVariant kFloatBase;
#if defined(__x86_64__)
extern const FloatVariant kFloatAvx2;
extern const FloatVariant kFloatAvx512;
#endif

}  // namespace gpupipe
