// The filters of neighbouring pixels, of uint8 or float, which each variant compiles for its own
// instruction set: see Filters for what they compute.
#pragma once

#include "color_rows.h"
#include "float_colors.h"

namespace gpupipe::color {

COLOR_INLINE void store_sum(float sum, uint8_t* level) { *level = to_level(round_even(sum)); }
COLOR_INLINE void store_sum(float sum, float* value) { *value = sum; }

// Blends a level with the sum of its neighbourhood, of which the weights are 13 in all.
COLOR_INLINE int16_t find_difference(const uint8_t* const at[3], const uint8_t* const left[3],
                                     const uint8_t* const right[3], int n) {
  const uint16_t sum = uint16_t(left[0][n] + at[0][n] + right[0][n] + left[1][n] + 5 * at[1][n] +
                                right[1][n] + left[2][n] + at[2][n] + right[2][n] + 6);
  const uint16_t smooth = uint16_t((uint32_t(sum) * 5042) >> 16);  // sum / 13, to the nearest
  return int16_t(smooth - at[1][n]);
}

COLOR_INLINE float find_difference(const float* const at[3], const float* const left[3],
                                   const float* const right[3], int n) {
  const float above = left[0][n] + at[0][n] + right[0][n];
  const float below = left[2][n] + at[2][n] + right[2][n];
  const float around = above + below + (left[1][n] + right[1][n]);
  return __builtin_fmaf(at[1][n], 5.0f, around) * (1.0f / 13.0f) - at[1][n];
}

COLOR_INLINE void store_blend(float value, uint8_t* level) { *level = to_level(value); }
COLOR_INLINE void store_blend(float value, float* to) { *to = floats::limit(value); }

template <typename Value>
COLOR_INLINE void sharpen(const Value* const rows[3], Value* values, int count, int step,
                          float change) {
  decltype(find_difference(rows, rows, rows, 0)) differences[kPart];
  for (int begin = 0; begin < count; begin += kPart) {
    const int size = count - begin < kPart ? count - begin : kPart;
    const Value *left[3], *own[3], *right[3];  // so that compilers see rows that do not wrap
    for (int k = 0; k < 3; ++k)
      own[k] = rows[k] + begin, left[k] = own[k] - step, right[k] = own[k] + step;
    for (int n = 0; n < size; ++n) differences[n] = find_difference(own, left, right, n);
    const Value* __restrict middle = own[1];
    Value* __restrict to = values + begin;
    for (int n = 0; n < size; ++n)
      store_blend(__builtin_fmaf(float(differences[n]), change, float(middle[n])), to + n);
  }
}

constexpr int kPairs = 4;  // pairs of rows that are summed at once

// Adds kCount pairs of rows, weighted, to the middle row or to the sums so far.
template <int kCount, bool kIsFirst, typename From, typename To>
COLOR_INLINE void add_few(const From* const first[], const From* const last[],
                          const float* weights, const From* middle, float weight,
                          const float* sums, To* to, int count) {
  To* __restrict result = to;
  for (int n = 0; n < count; ++n) {
    float sum = kIsFirst ? float(middle[n]) * weight : sums[n];
    for (int k = 0; k < kCount; ++k)
      sum = __builtin_fmaf(float(first[k][n] + last[k][n]), weights[k], sum);
    store_sum(sum, result + n);
  }
}

// Sums 2 * half + 1 rows of at most kPart values. find(k) returns a row.
template <typename From, typename To, typename Find>
COLOR_INLINE void sum_rows(const Find& find, const float* weights, int half, To* to, int count) {
  float sums[2][kPart];  // of two, since a loop must not write what it reads
  const From *first[kPairs], *last[kPairs];
  const From* const middle = find(half);
  const float weight = weights[half];
  for (int k = 0, turn = 0;; k += kPairs, turn ^= 1) {
    const int pairs = half - k < kPairs ? half - k : kPairs;
    for (int i = 0; i < pairs; ++i) first[i] = find(k + i), last[i] = find(2 * half - k - i);
    const float* const own = weights + k;
    const float* const so_far = sums[turn ^ 1];
    if (half - k > kPairs) {
      if (k == 0) add_few<4, true>(first, last, own, middle, weight, so_far, sums[turn], count);
      else add_few<4, false>(first, last, own, middle, weight, so_far, sums[turn], count);
      continue;
    }
    if (k > 0) {
      if (pairs == 1) add_few<1, false>(first, last, own, middle, weight, so_far, to, count);
      if (pairs == 2) add_few<2, false>(first, last, own, middle, weight, so_far, to, count);
      if (pairs == 3) add_few<3, false>(first, last, own, middle, weight, so_far, to, count);
      if (pairs == 4) add_few<4, false>(first, last, own, middle, weight, so_far, to, count);
      return;
    }
    if (pairs == 0) add_few<0, true>(first, last, own, middle, weight, so_far, to, count);
    if (pairs == 1) add_few<1, true>(first, last, own, middle, weight, so_far, to, count);
    if (pairs == 2) add_few<2, true>(first, last, own, middle, weight, so_far, to, count);
    if (pairs == 3) add_few<3, true>(first, last, own, middle, weight, so_far, to, count);
    if (pairs == 4) add_few<4, true>(first, last, own, middle, weight, so_far, to, count);
    return;
  }
}

template <typename Value>
COLOR_INLINE void blur_column(const Value* const rows[], const float* weights, int half,
                              float* sums, int count) {
  for (int begin = 0; begin < count; begin += kPart)
    sum_rows<Value>([=](int k) { return rows[k] + begin; }, weights, half, sums + begin,
                    count - begin < kPart ? count - begin : kPart);
}

template <typename Value>
COLOR_INLINE void blur_row(const float* from, const float* weights, int half, int step,
                           Value* values, int count) {
  for (int begin = 0; begin < count; begin += kPart)
    sum_rows<float>([=](int k) { return from + begin + k * step; }, weights, half, values + begin,
                    count - begin < kPart ? count - begin : kPart);
}

}  // namespace gpupipe::color
