// Changes of the colours of floats: torchvision's functions for float32, from 0 to 1.
//
// They compute what torchvision does, in parts of rows that stay in the first cache. The loops have
// no branches, so compilers vectorise them.
#pragma once

#include "float_rows.h"

namespace gpupipe::floats {

constexpr float kRed = 0.2989f, kGreen = 0.587f, kBlue = 0.114f;

// Planes of a part of an image.
struct Part {
  alignas(64) float planes[kChannels][kFloatPart];
};

// Returns the nearest number from 0 to 1. As in torch, a NaN stays one.
FLOAT_INLINE float limit(float value) {
  const float high = value > 1.0f ? 1.0f : value;
  return high < 0.0f ? 0.0f : high;
}

FLOAT_INLINE float compute_luma(float r, float g, float b) {
  return r * kRed + g * kGreen + b * kBlue;
}

// Sums the luma, in sums that do not wait for each other.
FLOAT_INLINE double sum_luma(const Part& part, int channels, int count) {
  constexpr int kWays = 8;
  float sums[kWays] = {};
  const float *r = part.planes[0], *g = part.planes[1], *b = part.planes[2];
  for (int n = 0; n < count; ++n)
    sums[n % kWays] += channels == 1 ? r[n] : compute_luma(r[n], g[n], b[n]);
  double total = 0;
  for (float sum : sums) total += double(sum);
  return total;
}

// Computes limit(factor * value + offset) of a plane.
FLOAT_INLINE void scale(float* values, int count, float factor, float offset) {
  for (int n = 0; n < count; ++n) values[n] = limit(values[n] * factor + offset);
}

// Does not limit the values, as torchvision does not.
FLOAT_INLINE void invert(float* values, int count) {
  for (int n = 0; n < count; ++n) values[n] = 1.0f - values[n];
}

FLOAT_INLINE void solarize(float* values, int count, float threshold) {
  for (int n = 0; n < count; ++n)
    values[n] = values[n] >= threshold ? 1.0f - values[n] : values[n];
}

FLOAT_INLINE void adjust_saturation(Part& part, int count, float factor) {
  float *r = part.planes[0], *g = part.planes[1], *b = part.planes[2];
  const float rest = 1.0f - factor;
  for (int n = 0; n < count; ++n) {
    const float gray = compute_luma(r[n], g[n], b[n]) * rest;
    r[n] = limit(r[n] * factor + gray);
    g[n] = limit(g[n] * factor + gray);
    b[n] = limit(b[n] * factor + gray);
  }
}

FLOAT_INLINE void make_gray(Part& part, int count) {
  float *r = part.planes[0], *g = part.planes[1], *b = part.planes[2];
  for (int n = 0; n < count; ++n) r[n] = g[n] = b[n] = compute_luma(r[n], g[n], b[n]);
}

// torchvision's _rgb_to_hsv, its sum, and its _hsv_to_rgb.
FLOAT_INLINE void adjust_hue(Part& part, int count, float turn) {
  float *red = part.planes[0], *green = part.planes[1], *blue = part.planes[2];
  for (int n = 0; n < count; ++n) {
    const float r = red[n], g = green[n], b = blue[n];
    const float gb_high = g > b ? g : b, gb_low = g < b ? g : b;
    const float high = r > gb_high ? r : gb_high, low = r < gb_low ? r : gb_low;
    const float range = high - low, divisor = range > 0.0f ? range : 1.0f;
    const float saturation = range / (range > 0.0f ? high : 1.0f);
    const float of_r = (high - r) / divisor, of_g = (high - g) / divisor;
    const float of_b = (high - b) / divisor;
    const float of_green = of_r + 2.0f - of_b, of_blue = of_g + 4.0f - of_r;
    const float other = high == g ? of_green : of_blue;
    float hue = (high == r ? of_b - of_g : other) * (1.0f / 6.0f) + 1.0f;
    hue = (hue < 1.0f ? hue : hue - 1.0f) + turn;
    hue = hue < 1.0f ? hue : hue - 1.0f;
    hue = (hue < 0.0f ? hue + 1.0f : hue) * 6.0f;
    const int whole = int(hue);
    const float way = saturation * (hue - float(whole)), rest = 1.0f - saturation;
    const float falling = limit((1.0f - way) * high), rising = limit((way + rest) * high);
    const float bottom = limit(rest * high);
    const int sixth = whole == 6 ? 0 : whole;
    red[n] = sixth == 0 || sixth == 5 ? high
             : sixth == 1 ? falling
             : sixth == 4 ? rising : bottom;
    green[n] = sixth == 1 || sixth == 2 ? high
               : sixth == 3 ? falling
               : sixth == 0 ? rising : bottom;
    blue[n] = sixth == 3 || sixth == 4 ? high
              : sixth == 5 ? falling
              : sixth == 2 ? rising : bottom;
  }
}

FLOAT_INLINE void change_part(const FloatChange& change, Part& part, int channels, int count) {
  switch (change.kind) {
    case FloatChange::kScale:
      for (int c = 0; c < channels; ++c)
        scale(part.planes[c], count, change.factor, change.offset);
      return;
    case FloatChange::kInvert:
      for (int c = 0; c < channels; ++c) invert(part.planes[c], count);
      return;
    case FloatChange::kSolarize:
      for (int c = 0; c < channels; ++c) solarize(part.planes[c], count, change.factor);
      return;
    case FloatChange::kSaturation:
      return adjust_saturation(part, count, change.factor);
    case FloatChange::kHue:
      return adjust_hue(part, count, change.factor);
    case FloatChange::kGray:
      return make_gray(part, count);
  }
}

FLOAT_INLINE double change_colors(const FloatChange* changes, int size, const float* from,
                                  float* to, int channels, int count) {
  Part part;
  for (int n = 0; n < count; ++n)
    for (int c = 0; c < channels; ++c) part.planes[c][n] = from[n * channels + c];
  for (int k = 0; k < size; ++k) change_part(changes[k], part, channels, count);
  if (!to) return sum_luma(part, channels, count);
  for (int n = 0; n < count; ++n)
    for (int c = 0; c < channels; ++c) to[n * channels + c] = part.planes[c][n];
  return 0;
}

}  // namespace gpupipe::floats
