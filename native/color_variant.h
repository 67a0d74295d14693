// The functions of colours that each variant has: see color_rows.h for what they compute.
#pragma once

#include <cstdint>

namespace gpupipe {

constexpr int kLevels = 256;
constexpr int kPart = 1024;  // pixels of a part of a row: what stays of it in the first cache

// torchvision's weights of red, green and blue, 0.2989, 0.587 and 0.114, with this number of
// fraction bits (v2.functional.rgb_to_grayscale).
constexpr int kLumaBits = 22;
constexpr uint32_t kLuma[3] = {1253677, 2462056, 478151};
constexpr uint32_t kLumaRound = 256;

// The filters of neighbouring values of uint8 or float.
template <typename Value>
struct Filters {
  // Adds `change` times the difference to the smoothed image. Reads `step` values before and after
  // those of each row.
  void (*sharpen)(const Value* const rows[3], Value* values, int count, int step, float change);

  // Sums 2 * half + 1 rows, weighted. The weights are the same from both ends.
  void (*blur_column)(const Value* const rows[], const float* weights, int half, float* sums,
                      int count);

  // Sums numbers that are `step` apart in the same way, and rounds the sums to levels.
  void (*blur_row)(const float* from, const float* weights, int half, int step, Value* values,
                   int count);
};

// Levels are uint8. Planes are those of an RGB image, of at most kPart pixels, changed in place.
struct ColorVariant {
  // Looks `count` levels up in a table of kLevels. `to` may be `from`.
  void (*look_up)(const uint8_t* from, uint8_t* to, int64_t count, const uint8_t* table);

  // Takes interleaved pixels apart, and puts them together.
  void (*split)(const uint8_t* pixels, uint8_t* const planes[], int count);
  void (*merge)(const uint8_t* const planes[], uint8_t* pixels, int count);

  // Writes the luma of pixels, of planes or of at most kPart interleaved ones.
  void (*compute_gray)(const uint8_t* const planes[], uint8_t* gray, int count);
  void (*read_gray)(const uint8_t* pixels, uint8_t* gray, int count);

  // Blends pixels with their luma: factor * level + rest * luma.
  void (*adjust_saturation)(uint8_t* const planes[], int count, float factor, float rest);

  // Turns the hue by a part of a circle from -0.5 to 0.5.
  void (*adjust_hue)(uint8_t* const planes[], int count, float turn);

  // Lowers `low` and raises `high` to the extremes of levels.
  void (*find_extremes)(const uint8_t* levels, int count, uint8_t* low, uint8_t* high);

  // Sums the luma of at most kPart interleaved pixels.
  uint32_t (*sum_luma)(const uint8_t* pixels, int count);

  // Sums at most 2^24 levels.
  uint32_t (*sum_levels)(const uint8_t* levels, int count);

  // Copies levels, the last one first.
  void (*reverse)(const uint8_t* from, uint8_t* to, int count);

  Filters<uint8_t> of_levels;
  Filters<float> of_floats;
};

extern const ColorVariant kColorBase;
#if defined(__x86_64__)
extern const ColorVariant kColorAvx2;
extern const ColorVariant kColorAvx512;
#endif

}  // namespace gpupipe
