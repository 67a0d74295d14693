// Changes of the colours of an image, in as few passes as their order allows.
//
//     changes     brightness, contrast, saturation, hue, contrast
//     pass 1      reads the luma after the table of brightness: the mean of the first contrast
//     pass 2      table of brightness and contrast, saturation, hue; the luma for the next mean
//     pass 3      table of contrast
//
// A change that maps each level by itself is a table, and tables that follow each other are one.
// A pass takes a part of a row through all changes while it is in the first cache.
#pragma once

#include "arena.h"
#include "variant.h"

namespace gpupipe {

// The numbers in gpupipe/engines/cpu/color_stages.py.
enum class Color : int64_t {
  kNone,
  kTable,         // a table of levels
  kBrightness,    // factor
  kContrast,      // factor
  kSaturation,    // factor
  kHue,           // a part of a circle, -0.5 to 0.5
  kPosterize,     // bits, 0 to 8
  kSolarize,      // threshold
  kSolarizeAdd,   // levels, 0 to 128
  kInvert,
  kAutocontrast,
  kEqualize,
  kSharpness,     // factor
  kBlur,          // width and height of the kernel, both odd, and sigma of both axes, above 0
  kPermute,       // the input's channel for each channel
  kGray,          // luma in as many channels as there are
  kToGray,        // luma in one channel
  kToRgb,         // three equal channels
  kLinear,        // factor, and what is added in units of 255
  kLinearByMean,  // factor, and how much of the mean of all values is added
  kGamma,         // the power of each float; for levels, it is a table
  kCount,
};

constexpr int kColorValues = 4;

struct ColorChange {
  Color color;
  double values[kColorValues];
  const uint8_t* table;  // kLevels, for kTable
};

// Returns what is wrong with the values of a change; null if nothing is.
const char* check_color(Color color, const double* values);

// Replaces all levels of an image by those of a table, in memory of the arena if the image must not
// be overwritten.
void look_up_levels(const uint8_t* table, const ColorVariant& variant, Image* image, Arena& arena);

// Changes an image of uint8 with 1 or 3 channels, in memory of the arena if it must not be
// overwritten. The image may be planes. A table that comes last is left to the next stage. Returns
// false if the image is too small for the mirrored border of a blur.
bool change_colors(const std::vector<ColorChange>& changes, const ColorVariant& variant,
                   Image* image, Arena& arena);

// Changes an image of float32 with 1 or 3 channels in the same way. Changes that come last are left
// to the next stage. Returns false if there is no such change of floats, or the image is too small.
bool change_float_colors(const std::vector<ColorChange>& changes, const Variant& variant,
                         Image* image, Arena& arena);

// Makes the changes that an image of float32 waits for, in memory of the arena if it must not be
// overwritten.
void make_float_changes(const FloatVariant& variant, Image* image, Arena& arena);

// Makes them, and writes the pixels to another image, unless its pixels are null. Adds them to
// statistics, unless these are null. If `is_streamed`, they are written past the cache. If
// `is_reversed`, the last row comes first.
void run_float_changes(const FloatVariant& variant, const Image& image, const Image& to,
                       FloatStatistics* statistics, bool is_streamed = false,
                       bool is_reversed = false);

// Makes them for one row, which it writes to the first row of another image.
void run_float_changes_of_row(const FloatVariant& variant, const Image& image, int row,
                              const Image& to);

}  // namespace gpupipe
