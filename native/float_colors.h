// Changes of the colours of floats: torchvision's functions for float32, from 0 to 1.
//
// They compute what torchvision does, in parts of rows that stay in the first cache. The loops have
// no branches, so compilers vectorise them.
#pragma once

#include <cmath>

#include "elementary.h"
#include "float_rows.h"

namespace gpupipe::floats {

constexpr float kRed = 0.2989f, kGreen = 0.587f, kBlue = 0.114f;

// Planes of a part of an image.
struct Planes {
  alignas(64) float values[kChannels][kFloatPart];
  float* planes[kChannels] = {values[0], values[1], values[2]};
  int channels;
};

// Returns the nearest number from 0 to 1. As in torch, a NaN stays one.
FLOAT_INLINE float limit(float value) {
  const float high = value > 1.0f ? 1.0f : value;
  return high < 0.0f ? 0.0f : high;
}

FLOAT_INLINE float compute_luma(float r, float g, float b) {
  return r * kRed + g * kGreen + b * kBlue;
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

FLOAT_INLINE void stretch(float* values, int count, float low, float range) {
  for (int n = 0; n < count; ++n) values[n] = limit((values[n] - low) / range);
}

// Raises values to a power. As in torch, one of 0 is 1, and negative values have whole powers only.
FLOAT_INLINE void raise(float* values, int count, float power) {
  int negatives = 0;
  for (int n = 0; n < count; ++n) negatives += values[n] < 0.0f ? 1 : 0;
  if (negatives > 0) {
    for (int n = 0; n < count; ++n) values[n] = std::pow(values[n], power);
    return;
  }
  const float of_zero = power == 0.0f ? 1.0f : 0.0f;
  for (int n = 0; n < count; ++n) {
    const float raised = exp_of(log_of(values[n]) * power);
    values[n] = values[n] > 0.0f ? raised : values[n] == 0.0f ? of_zero : values[n];
  }
}

FLOAT_INLINE void adjust_saturation(float* const planes[], int count, float factor) {
  float *__restrict r = planes[0], *__restrict g = planes[1], *__restrict b = planes[2];
  const float rest = 1.0f - factor;
  for (int n = 0; n < count; ++n) {
    const float gray = compute_luma(r[n], g[n], b[n]) * rest;
    r[n] = limit(r[n] * factor + gray);
    g[n] = limit(g[n] * factor + gray);
    b[n] = limit(b[n] * factor + gray);
  }
}

FLOAT_INLINE void make_gray(Planes& pixels, int count, int channels) {
  float *__restrict r = pixels.planes[0], *__restrict g = pixels.planes[1];
  float* __restrict b = pixels.planes[2];
  for (int n = 0; n < count; ++n) r[n] = g[n] = b[n] = compute_luma(r[n], g[n], b[n]);
  pixels.channels = channels;
}

FLOAT_INLINE void make_rgb(Planes& pixels, int count) {
  for (int c = 1; c < kChannels; ++c)
    std::memcpy(pixels.planes[c], pixels.planes[0], size_t(count) * sizeof(float));
  pixels.channels = kChannels;
}

FLOAT_INLINE void permute(Planes& pixels, const int order[]) {
  float* const old[] = {pixels.planes[0], pixels.planes[1], pixels.planes[2]};
  for (int c = 0; c < kChannels; ++c) pixels.planes[c] = old[order[c]];
}

// torchvision's _rgb_to_hsv, its sum, and its _hsv_to_rgb.
FLOAT_INLINE void adjust_hue(float* const planes[], int count, float turn) {
  float *__restrict red = planes[0], *__restrict green = planes[1], *__restrict blue = planes[2];
  for (int n = 0; n < count; ++n) {
    const float r = red[n], g = green[n], b = blue[n];
    const float gb_high = g > b ? g : b, gb_low = g < b ? g : b;
    const float high = r > gb_high ? r : gb_high, low = r < gb_low ? r : gb_low;
    const float range = high - low, divisor = range > 0.0f ? range : 1.0f;
    const float saturation = range / (range > 0.0f ? high : 1.0f);
    // The two channels of which the hue is a difference, and where it begins.
    const bool is_red = high == r, is_green = high == g;
    const float first = is_red ? b : is_green ? r : g, second = is_red ? g : is_green ? b : r;
    const float base = is_red ? 0.0f : is_green ? 2.0f : 4.0f;
    float hue = (((high - first) / divisor + base) - (high - second) / divisor) * (1.0f / 6.0f);
    hue += 1.0f;
    hue = (hue < 1.0f ? hue : hue - 1.0f) + turn;
    hue = hue < 1.0f ? hue : hue - 1.0f;
    hue = (hue < 0.0f ? hue + 1.0f : hue) * 6.0f;
    const int whole = int(hue);
    const float way = saturation * (hue - float(whole)), rest = 1.0f - saturation;
    const float middle = limit(((whole & 1) ? 1.0f - way : way + rest) * high);
    const float bottom = limit(rest * high);
    const int sixth = whole == 6 ? 0 : whole;
    red[n] = sixth == 0 || sixth == 5 ? high : sixth == 1 || sixth == 4 ? middle : bottom;
    green[n] = sixth == 1 || sixth == 2 ? high : sixth == 0 || sixth == 3 ? middle : bottom;
    blue[n] = sixth == 3 || sixth == 4 ? high : sixth == 2 || sixth == 5 ? middle : bottom;
  }
}

FLOAT_INLINE void change_planes(const FloatChange& change, Planes& pixels, int count) {
  switch (change.kind) {
    case FloatChange::kScale:
      for (int c = 0; c < pixels.channels; ++c)
        scale(pixels.planes[c], count, change.factor, change.offset);
      return;
    case FloatChange::kStretch:
      for (int c = 0; c < pixels.channels; ++c)
        stretch(pixels.planes[c], count, change.low[c], change.range[c]);
      return;
    case FloatChange::kInvert:
      for (int c = 0; c < pixels.channels; ++c) invert(pixels.planes[c], count);
      return;
    case FloatChange::kSolarize:
      for (int c = 0; c < pixels.channels; ++c) solarize(pixels.planes[c], count, change.factor);
      return;
    case FloatChange::kGamma:
      for (int c = 0; c < pixels.channels; ++c) raise(pixels.planes[c], count, change.factor);
      return;
    case FloatChange::kSaturation:
      return adjust_saturation(pixels.planes, count, change.factor);
    case FloatChange::kHue:
      return adjust_hue(pixels.planes, count, change.factor);
    case FloatChange::kGray:
      return make_gray(pixels, count, kChannels);
    case FloatChange::kToGray:
      return make_gray(pixels, count, 1);
    case FloatChange::kToRgb:
      return make_rgb(pixels, count);
    case FloatChange::kPermute:
      return permute(pixels, change.order);
  }
}

// Adds find(n) of all pixels, in sums that do not wait for each other.
template <typename Find>
FLOAT_INLINE double sum_each(int count, const Find& find) {
  constexpr int kWays = 32;
  float sums[kWays] = {};
  int n = 0;
  for (; n + kWays <= count; n += kWays)
    for (int k = 0; k < kWays; ++k) sums[k] += find(n + k);
  for (; n < count; ++n) sums[n % kWays] += find(n);
  double total = 0;
  for (const float sum : sums) total += double(sum);
  return total;
}

FLOAT_INLINE void find_extremes(const float* values, int count, float* low, float* high) {
  float least = *low, greatest = *high;
  int nans = least == least ? 0 : 1;
  for (int n = 0; n < count; ++n) {
    least = values[n] < least ? values[n] : least;
    greatest = values[n] > greatest ? values[n] : greatest;
    nans += values[n] == values[n] ? 0 : 1;
  }
  *low = nans ? NAN : least;
  *high = nans ? NAN : greatest;
}

FLOAT_INLINE void add_statistics(const Planes& pixels, int count, FloatStatistics& statistics) {
  const float *const r = pixels.planes[0], *const g = pixels.planes[1];
  const float* const b = pixels.planes[2];
  if (statistics.kind == FloatStatistics::kLuma && pixels.channels == kChannels) {
    statistics.sum += sum_each(count, [=](int n) { return compute_luma(r[n], g[n], b[n]); });
    return;
  }
  for (int c = 0; c < pixels.channels; ++c) {
    const float* const values = pixels.planes[c];
    if (statistics.kind == FloatStatistics::kExtremes)
      find_extremes(values, count, &statistics.low[c], &statistics.high[c]);
    else
      statistics.sum += sum_each(count, [=](int n) { return values[n]; });
  }
}

FLOAT_INLINE void change_colors(const FloatChange* changes, int size, const FloatPart& part) {
  Planes pixels;
  pixels.channels = part.channels;
  const size_t bytes = size_t(part.count) * sizeof(float);
  if (part.from_plane || part.channels == 1) {
    for (int c = 0; c < part.channels; ++c)
      std::memcpy(pixels.planes[c], part.from + c * part.from_plane, bytes);
  } else {
    split(part.from, pixels.planes, kChannels, part.count, false);
  }
  for (int k = 0; k < size; ++k) change_planes(changes[k], pixels, part.count);
  if (part.statistics) add_statistics(pixels, part.count, *part.statistics);
  if (!part.to) return;
  if (part.to_plane || pixels.channels == 1) {
    for (int c = 0; c < pixels.channels; ++c)
      std::memcpy(part.to + c * part.to_plane, pixels.planes[c], bytes);
  } else {
    merge(pixels.planes, part.to, kChannels, part.count);
  }
}

}  // namespace gpupipe::floats
