// The functions of colours, which each variant compiles for its own instruction set.
//
// They compute what torchvision does in float32: the same operations, each rounded once, so that
// all variants give the same pixels to the bit. The loops have no branches, so compilers vectorise
// them.
#pragma once

#include "color_variant.h"

namespace gpupipe::color {

#define COLOR_INLINE __attribute__((always_inline)) inline

// Rounds to the nearest integer, halves to even, for 0 <= value < 2^22.
COLOR_INLINE float round_even(float value) {
  const float shift = 12582912.0f;  // 1.5 * 2^23: floats of that size are integers
  return (value + shift) - shift;
}

// Truncates a number to a level; NaN becomes 0.
COLOR_INLINE uint8_t to_level(float value) {
  const float high = value < 255.0f ? value : 255.0f;
  return uint8_t(int(high > 0.0f ? high : 0.0f));
}

// Returns the luma of a pixel, which torchvision computes in float32 and truncates. Integers cost
// less, and differ for three of the 2^24 colours, which float32 rounds down from a whole level.
COLOR_INLINE uint32_t compute_luma(uint8_t r, uint8_t g, uint8_t b) {
  return (r * kLuma[0] + g * kLuma[1] + b * kLuma[2] + kLumaRound) >> kLumaBits;
}

COLOR_INLINE void compute_gray(const uint8_t* const planes[], uint8_t* gray, int count) {
  const uint8_t* __restrict r = planes[0];
  const uint8_t* __restrict g = planes[1];
  const uint8_t* __restrict b = planes[2];
  uint8_t* __restrict to = gray;
  for (int n = 0; n < count; ++n) to[n] = uint8_t(compute_luma(r[n], g[n], b[n]));
}

COLOR_INLINE void adjust_saturation(uint8_t* const planes[], int count, float factor, float rest) {
  uint8_t* __restrict r = planes[0];
  uint8_t* __restrict g = planes[1];
  uint8_t* __restrict b = planes[2];
  for (int n = 0; n < count; ++n) {
    const float gray = float(compute_luma(r[n], g[n], b[n]));
    r[n] = to_level(__builtin_fmaf(gray, rest, float(r[n]) * factor));
    g[n] = to_level(__builtin_fmaf(gray, rest, float(g[n]) * factor));
    b[n] = to_level(__builtin_fmaf(gray, rest, float(b[n]) * factor));
  }
}

// What a turn of the hue keeps of a part of a row between its loops.
struct HueParts {
  // The largest and smallest level, the levels of which the hue is a difference, and 2 * the
  // number of the largest channel.
  alignas(64) uint8_t high[kPart], low[kPart], first[kPart], second[kPart], base[kPart];
  // The sixth of the circle of the new hue, and the levels of the middle and smallest channel.
  alignas(64) uint8_t sixth[kPart], middle[kPart], bottom[kPart];
};

COLOR_INLINE void find_parts(uint8_t* const planes[], int count, HueParts& parts) {
  const uint8_t* __restrict r = planes[0];
  const uint8_t* __restrict g = planes[1];
  const uint8_t* __restrict b = planes[2];
  for (int n = 0; n < count; ++n) {
    const uint8_t gb_high = g[n] > b[n] ? g[n] : b[n], gb_low = g[n] < b[n] ? g[n] : b[n];
    const uint8_t high = r[n] > gb_high ? r[n] : gb_high;
    parts.high[n] = high;
    parts.low[n] = r[n] < gb_low ? r[n] : gb_low;
    const uint8_t red = high == r[n] ? 255 : 0, green = high == g[n] ? 255 : 0;
    const uint8_t first = (green & r[n]) | (uint8_t(~green) & g[n]);
    const uint8_t second = (green & b[n]) | (uint8_t(~green) & r[n]);
    parts.first[n] = (red & b[n]) | (uint8_t(~red) & first);
    parts.second[n] = (red & g[n]) | (uint8_t(~red) & second);
    parts.base[n] = uint8_t(~red) & (4 - (green & 2));
  }
}

// Turns the hue: torchvision's _rgb_to_hsv, its sum, and the numbers of its _hsv_to_rgb.
COLOR_INLINE void turn_parts(int count, float turn, HueParts& parts) {
  const float to_number = 1.0f / 255.0f, to_levels = 255.999f, sixth = 1.0f / 6.0f;
  for (int n = 0; n < count; ++n) {
    const float high = float(parts.high[n]) * to_number, low = float(parts.low[n]) * to_number;
    const float range = high - low;
    const float saturation = range / (range > 0.0f ? high : 1.0f);
    const float divisor = range > 0.0f ? range : 1.0f;
    const float first = (high - float(parts.first[n]) * to_number) / divisor;
    const float second = (high - float(parts.second[n]) * to_number) / divisor;
    float hue = ((first + float(parts.base[n])) - second) * sixth + 1.0f;
    hue = (hue < 1.0f ? hue : hue - 1.0f) + turn;
    hue = hue < 1.0f ? hue : hue - 1.0f;
    hue = (hue < 0.0f ? hue + 1.0f : hue) * 6.0f;
    const int whole = int(hue);
    const float part = saturation * (hue - float(whole)), rest = 1.0f - saturation;
    const float middle = (whole & 1) ? 1.0f - part : part + rest;
    parts.sixth[n] = uint8_t(whole);
    parts.middle[n] = uint8_t(int(middle * high * to_levels));
    parts.bottom[n] = uint8_t(int(rest * high * to_levels));
  }
}

COLOR_INLINE void gather_parts(uint8_t* const planes[], int count, const HueParts& parts) {
  uint8_t* __restrict r = planes[0];
  uint8_t* __restrict g = planes[1];
  uint8_t* __restrict b = planes[2];
  for (int n = 0; n < count; ++n) {
    const uint8_t sixth = parts.sixth[n], high = parts.high[n];
    const uint8_t middle = parts.middle[n], bottom = parts.bottom[n];
    const uint8_t is_0 = (sixth == 0 || sixth == 6) ? 255 : 0, is_1 = sixth == 1 ? 255 : 0;
    const uint8_t is_2 = sixth == 2 ? 255 : 0, is_3 = sixth == 3 ? 255 : 0;
    const uint8_t is_4 = sixth == 4 ? 255 : 0, is_5 = sixth == 5 ? 255 : 0;
    r[n] = ((is_0 | is_5) & high) | ((is_1 | is_4) & middle) | ((is_2 | is_3) & bottom);
    g[n] = ((is_1 | is_2) & high) | ((is_0 | is_3) & middle) | ((is_4 | is_5) & bottom);
    b[n] = ((is_3 | is_4) & high) | ((is_2 | is_5) & middle) | ((is_0 | is_1) & bottom);
  }
}

COLOR_INLINE void adjust_hue(uint8_t* const planes[], int count, float turn) {
  HueParts parts;
  find_parts(planes, count, parts);
  turn_parts(count, turn, parts);
  gather_parts(planes, count, parts);
}

COLOR_INLINE void find_extremes(const uint8_t* levels, int count, uint8_t* low, uint8_t* high) {
  uint8_t least = *low, greatest = *high;
  for (int n = 0; n < count; ++n) {
    least = levels[n] < least ? levels[n] : least;
    greatest = levels[n] > greatest ? levels[n] : greatest;
  }
  *low = least;
  *high = greatest;
}

COLOR_INLINE uint32_t sum_levels(const uint8_t* levels, int count) {
  uint32_t sum = 0;
  for (int n = 0; n < count; ++n) sum += levels[n];
  return sum;
}

COLOR_INLINE void look_up_each(const uint8_t* from, uint8_t* to, int64_t begin, int64_t count,
                               const uint8_t* table) {
  for (int64_t n = begin; n < count; ++n) to[n] = table[from[n]];
}

COLOR_INLINE void reverse(const uint8_t* from, uint8_t* to, int count) {
  for (int n = 0; n < count; ++n) to[n] = from[count - 1 - n];
}

}  // namespace gpupipe::color
