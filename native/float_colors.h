// Changes of the colours of floats: torchvision's functions for float32, from 0 to 1.
//
// They compute what torchvision does, a few pixels at a time: so memory is read while the processor
// computes. The loops have no branches, so compilers vectorise them.
#pragma once

#include <cmath>

#include "elementary.h"
#include "float_rows.h"

namespace gpupipe::floats {

constexpr float kRed = 0.2989f, kGreen = 0.587f, kBlue = 0.114f;

// So many pixels are changed at once: few enough that processors load the next ones meanwhile.
constexpr int kFew = 64;
constexpr int kLanes = 16;  // sums that do not wait for each other

// Planes of a few pixels.
struct Planes {
  alignas(64) float values[kChannels][kFew];
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
FLOAT_INLINE void scale(float* values, float factor, float offset) {
  for (int n = 0; n < kFew; ++n) values[n] = limit(values[n] * factor + offset);
}

// Does not limit the values, as torchvision does not.
FLOAT_INLINE void invert(float* values) {
  for (int n = 0; n < kFew; ++n) values[n] = 1.0f - values[n];
}

FLOAT_INLINE void solarize(float* values, float threshold) {
  for (int n = 0; n < kFew; ++n)
    values[n] = values[n] >= threshold ? 1.0f - values[n] : values[n];
}

FLOAT_INLINE void stretch(float* values, float low, float range) {
  for (int n = 0; n < kFew; ++n) values[n] = limit((values[n] - low) / range);
}

FLOAT_INLINE void normalize_plane(float* values, float mean, float std) {
  for (int n = 0; n < kFew; ++n) values[n] = (values[n] - mean) / std;
}

// Returns a positive number to a power, to 2e-7 of numbers up to 1: 2^(power * log2(value)).
FLOAT_INLINE float raise_one(float value, float power) {
  const int32_t kRootHalf = 0x3f3504f3;  // the bits of sqrt(0.5)
  const int32_t bits = to_bits(value) - kRootHalf;
  const float x = to_float((bits & 0x7fffff) + kRootHalf) - 1.0f;
  // The polynomial of Cephes' logf (Moshier), and of its exp2f.
  float y = __builtin_fmaf(7.0376836292e-2f, x, -1.1514610310e-1f);
  y = __builtin_fmaf(y, x, 1.1676998740e-1f);
  y = __builtin_fmaf(y, x, -1.2420140846e-1f);
  y = __builtin_fmaf(y, x, 1.4249322787e-1f);
  y = __builtin_fmaf(y, x, -1.6668057665e-1f);
  y = __builtin_fmaf(y, x, 2.0000714765e-1f);
  y = __builtin_fmaf(y, x, -2.4999993993e-1f);
  y = __builtin_fmaf(y, x, 3.3333331174e-1f);
  const float square = x * x;
  const float log = __builtin_fmaf(y * x - 0.5f, square, x);
  const float exponent = __builtin_fmaf(log, 1.44269504f, float(bits >> 23)) * power;
  const float low = -126.0f, high = 127.0f;
  const float at = exponent < low ? low : exponent > high ? high : exponent;
  const float shift = 12582912.0f;  // 1.5 * 2^23: floats of that size are integers
  const float whole = (at + shift) - shift, part = at - whole;
  float z = __builtin_fmaf(1.535336188319500e-4f, part, 1.339887440266574e-3f);
  z = __builtin_fmaf(z, part, 9.618437357674640e-3f);
  z = __builtin_fmaf(z, part, 5.550332471162809e-2f);
  z = __builtin_fmaf(z, part, 2.402264791363012e-1f);
  z = __builtin_fmaf(z, part, 6.931472028550421e-1f);
  z = __builtin_fmaf(z, part, 1.0f);
  return z * to_float((int32_t(whole) + 127) << 23);
}

// Raises values to a power. As in torch, one of 0 is 1, and negative values have whole powers only.
FLOAT_INLINE void raise(float* values, float power) {
  int others = 0;  // that are no normal numbers
  for (int n = 0; n < kFew; ++n) {
    const float value = values[n];
    others += (value >= 1.2e-38f && value < HUGE_VALF) || value == 0.0f ? 0 : 1;
  }
  if (others > 0) {
    for (int n = 0; n < kFew; ++n) values[n] = std::pow(values[n], power);
    return;
  }
  const float of_zero = power == 0.0f ? 1.0f : 0.0f;
  for (int n = 0; n < kFew; ++n) {
    const float raised = raise_one(values[n], power);
    values[n] = values[n] == 0.0f ? of_zero : raised;
  }
}

FLOAT_INLINE void adjust_saturation(float* const planes[], float factor) {
  float *__restrict r = planes[0], *__restrict g = planes[1], *__restrict b = planes[2];
  const float rest = 1.0f - factor;
  for (int n = 0; n < kFew; ++n) {
    const float gray = compute_luma(r[n], g[n], b[n]) * rest;
    r[n] = limit(r[n] * factor + gray);
    g[n] = limit(g[n] * factor + gray);
    b[n] = limit(b[n] * factor + gray);
  }
}

FLOAT_INLINE void make_gray(Planes& pixels, int channels) {
  float *__restrict r = pixels.planes[0], *__restrict g = pixels.planes[1];
  float* __restrict b = pixels.planes[2];
  for (int n = 0; n < kFew; ++n) r[n] = g[n] = b[n] = compute_luma(r[n], g[n], b[n]);
  pixels.channels = channels;
}

FLOAT_INLINE void make_rgb(Planes& pixels) {
  for (int c = 1; c < kChannels; ++c)
    std::memcpy(pixels.planes[c], pixels.planes[0], size_t(kFew) * sizeof(float));
  pixels.channels = kChannels;
}

FLOAT_INLINE void permute(Planes& pixels, const int order[]) {
  float* const old[] = {pixels.planes[0], pixels.planes[1], pixels.planes[2]};
  for (int c = 0; c < kChannels; ++c) pixels.planes[c] = old[order[c]];
}

// Returns a channel of a colour: `level` is from the smallest channel, 0, to the largest, 1.
FLOAT_INLINE float find_channel(float level, float low, float range, float high) {
  const float value = limit(__builtin_fmaf(level > 0.0f ? level : 0.0f, range, low));
  return level >= 1.0f ? high : value;
}

// Turns the hue as torchvision does, which takes all channels but the largest from 0 to 1. The hue
// is in sixths of the circle: red at 0, green at 2 and blue at 4.
FLOAT_INLINE void adjust_hue(float* const planes[], float turn) {
  float *__restrict red = planes[0], *__restrict green = planes[1], *__restrict blue = planes[2];
  float begin[kChannels];
  for (int c = 0; c < kChannels; ++c) {
    const double hue = 2.0 * c + 6.0 * double(turn);
    begin[c] = float(hue < 0 ? hue + 6 : hue >= 6 ? hue - 6 : hue);
  }
  const float begin_r = begin[0], begin_g = begin[1], begin_b = begin[2];
  for (int n = 0; n < kFew; ++n) {
    const float r = red[n], g = green[n], b = blue[n];
    const float gb_high = g > b ? g : b, gb_low = g < b ? g : b;
    const float high = r > gb_high ? r : gb_high, low = r < gb_low ? r : gb_low;
    const float range = high - low, part = 1.0f / (range > 0.0f ? range : 1.0f);
    const bool is_red = high == r, is_green = high == g;
    const float difference = is_red ? g - b : is_green ? b - r : r - g;
    const float first = is_red ? begin_r : is_green ? begin_g : begin_b;
    float hue = __builtin_fmaf(difference, part, first);
    hue = hue < 0.0f ? hue + 6.0f : hue;
    hue = hue < 6.0f ? hue : hue - 6.0f;
    const float of_red = hue - 3.0f, of_green = hue - 2.0f, of_blue = hue - 4.0f;
    red[n] = find_channel(__builtin_fabsf(of_red) - 1.0f, low, range, high);
    green[n] = find_channel(2.0f - __builtin_fabsf(of_green), low, range, high);
    blue[n] = find_channel(2.0f - __builtin_fabsf(of_blue), low, range, high);
  }
}

FLOAT_INLINE void change_planes(const FloatChange& change, Planes& pixels) {
  float* const* const planes = pixels.planes;
  switch (change.kind) {
    case FloatChange::kScale:
      for (int c = 0; c < pixels.channels; ++c) scale(planes[c], change.factor, change.offset);
      return;
    case FloatChange::kInvert:
      for (int c = 0; c < pixels.channels; ++c) invert(planes[c]);
      return;
    case FloatChange::kSolarize:
      for (int c = 0; c < pixels.channels; ++c) solarize(planes[c], change.factor);
      return;
    case FloatChange::kGamma:
      for (int c = 0; c < pixels.channels; ++c) raise(planes[c], change.factor);
      return;
    case FloatChange::kStretch:
      for (int c = 0; c < pixels.channels; ++c) stretch(planes[c], change.low[c], change.range[c]);
      return;
    case FloatChange::kNormalize:
      for (int c = 0; c < pixels.channels; ++c)
        normalize_plane(planes[c], change.low[c], change.range[c]);
      return;
    case FloatChange::kSaturation:
      return adjust_saturation(planes, change.factor);
    case FloatChange::kHue:
      return adjust_hue(planes, change.factor);
    case FloatChange::kGray:
      return make_gray(pixels, kChannels);
    case FloatChange::kToGray:
      return make_gray(pixels, 1);
    case FloatChange::kToRgb:
      return make_rgb(pixels);
    case FloatChange::kPermute:
      return permute(pixels, change.order);
  }
}

}  // namespace gpupipe::floats
