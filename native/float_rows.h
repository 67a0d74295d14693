// The functions for images of float32, which each variant compiles for its own instruction set.
//
// A pixel is one value, or a vector of the values of its channels, in operations that are each
// rounded once. So all variants give the same numbers to the bit.
#pragma once

#include <cstring>

#include "rows.h"

namespace gpupipe::floats {

// A variant defines this with its instruction set, which its own functions called from here need.
#ifndef FLOAT_INLINE
#define FLOAT_INLINE __attribute__((always_inline)) inline
#endif

using Two = float __attribute__((vector_size(8)));
using Four = float __attribute__((vector_size(16)));
using Eight = float __attribute__((vector_size(32), aligned(4), may_alias));  // anywhere

// The values of a pixel. Those of three channels are read and written with one value more.
template <int kCount>
struct PixelType {
  using Type = Four;
};
template <>
struct PixelType<1> {
  using Type = float;
};
template <>
struct PixelType<2> {
  using Type = Two;
};
template <int kCount>
using Pixel = typename PixelType<kCount>::Type;

template <typename T>
FLOAT_INLINE T load(const void* bytes) {
  T value;
  std::memcpy(&value, bytes, sizeof value);
  return value;
}

// Where pixels of a row of a tile show the source: their upper left neighbours, and the ways from
// these.
struct Points {
  alignas(64) int32_t left[kTileWidth], top[kTileWidth];
  alignas(64) float x[kTileWidth], y[kTileWidth];
  alignas(64) int32_t offset[kTileWidth];  // of the upper left neighbours, in bytes
};

// Splits a coordinate into a whole number and a part. What is outside of every image stays outside.
FLOAT_INLINE void split_coordinate(double at, int32_t* whole, float* part) {
  const double high = kMaxSide + 1.0;
  at = at > -2.0 ? at : -2.0;  // so NaN is outside
  at = at < high ? at : high;
  *whole = int32_t(at + 2.0) - 2;
  *part = float(at - *whole);
}

// An axis of an affine warp along a row of the output, in float32 from the pixel of the source
// before its first point: of what a tile shows there, float32 keeps 2^-17 of a pixel.
struct Axis {
  int32_t first;
  float begin, step;

  static constexpr double kMaxStep = 4;  // pixels

  // Returns whether all points of a tile are near an image.
  FLOAT_INLINE bool set(double at, double pixels) {
    const double far = kMaxSide * 2.0;
    if (!(at > -far && at < far && pixels > -kMaxStep && pixels < kMaxStep)) return false;
    first = int32_t(at + far) - int32_t(far);
    begin = float(at - first), step = float(pixels);
    return true;
  }

  FLOAT_INLINE void locate(int count, int32_t* whole, float* part) const {
    for (int n = 0; n < count; ++n) {
      const float at = begin + step * float(n);
      const int32_t truncated = int32_t(at), below = truncated - (float(truncated) > at ? 1 : 0);
      whole[n] = first + below;
      part[n] = at - float(below);
    }
  }
};

FLOAT_INLINE void locate(const Warp& warp, int row, int begin, int count, Points& points) {
  const double* m = warp.matrix;
  const double u0 = m[1] * row + m[2], v0 = m[4] * row + m[5], w0 = m[7] * row + m[8];
  Axis x, y;
  if (!warp.is_perspective && x.set(m[0] * begin + u0, m[0]) && y.set(m[3] * begin + v0, m[3])) {
    x.locate(count, points.left, points.x);
    y.locate(count, points.top, points.y);
    return;
  }
  for (int n = 0; n < count; ++n) {
    const double column = begin + n, part = 1.0 / (m[6] * column + w0);
    split_coordinate((m[0] * column + u0) * part, &points.left[n], &points.x[n]);
    split_coordinate((m[3] * column + v0) * part, &points.top[n], &points.y[n]);
  }
}

// Interpolates at the border: see interpolate_border.
__attribute__((noinline)) inline void warp_border(const Warp& warp, int left, int top, float wx,
                                                  float wy, float* to) {
  const Image& s = warp.source;
  const float across[2] = {1.0f - wx, wx}, down[2] = {1.0f - wy, wy};
  float sums[kMaxChannels] = {}, mask = 0;
  for (int k = 0; k < 4; ++k) {
    const int x = left + k % 2, y = top + k / 2;
    if (x < 0 || y < 0 || x >= s.width || y >= s.height) continue;
    const float weight = across[k % 2] * down[k / 2];
    const float* const pixel = reinterpret_cast<const float*>(s.row(y)) + int64_t{x} * s.channels;
    for (int c = 0; c < s.channels; ++c) sums[c] += weight * pixel[c];
    mask += weight;
  }
  for (int c = 0; c < s.channels; ++c)
    to[c] = warp.has_fill ? (sums[c] - warp.fill[c]) * mask + warp.fill[c] : sums[c];
}

// Finds the offsets of points. Returns whether all four neighbours of each are inside, and as many
// bytes as a pixel is read with.
template <int kCount>
FLOAT_INLINE bool find_offsets(const Image& s, int count, Points& points) {
  const uint32_t max_left = uint32_t(s.width - 1), max_top = uint32_t(s.height - 1);
  const uint32_t stride = uint32_t(s.stride), step = kCount * sizeof(float);
  const int64_t last = s.size() - s.stride - int64_t{step} - int64_t{sizeof(Pixel<kCount>)};
  if (last < 0 || s.size() > INT32_MAX) return false;
  const uint32_t max_offset = uint32_t(last);
  int inside = 0;
  for (int n = 0; n < count; ++n) {
    const uint32_t left = uint32_t(points.left[n]), top = uint32_t(points.top[n]);
    const uint32_t offset = top * stride + left * step;
    points.offset[n] = int32_t(offset);
    inside += left < max_left && top < max_top && offset <= max_offset ? 1 : 0;
  }
  return inside == count;
}

// Interpolates between four neighbours, which are all inside.
template <int kCount>
FLOAT_INLINE void interpolate_inside(const uint8_t* at, int64_t stride, float x, float y,
                                     float* to) {
  using T = Pixel<kCount>;
  constexpr int64_t kStep = kCount * int64_t{sizeof(float)};
  const T a = load<T>(at), b = load<T>(at + kStep);
  const T c = load<T>(at + stride), d = load<T>(at + stride + kStep);
  const T above = a + (b - a) * x, below = c + (d - c) * x;
  const T value = above + (below - above) * y;
  std::memcpy(to, &value, sizeof value);
}

// Warps points of a row. `Few` warps as many as it can of those that are inside, several at once.
template <int kCount, typename Few>
FLOAT_INLINE void warp_span(const Warp& warp, Points& points, int count, float* to) {
  using T = Pixel<kCount>;
  const Image& s = warp.source;
  const int64_t stride = s.stride, step = kCount * int64_t{sizeof(float)};
  if (find_offsets<kCount>(s, count, points)) {
    for (int n = Few::template warp<kCount>(s, points, count, to); n < count; ++n)
      interpolate_inside<kCount>(s.pixels + points.offset[n], stride, points.x[n], points.y[n],
                                 to + n * kCount);
    return;
  }
  const uint32_t max_left = uint32_t(s.width - 1), max_top = uint32_t(s.height - 1);
  const T outside = load<T>(warp.fill);
  // After the last pixel of three channels there is no value to read.
  const int64_t max_offset = s.size() - stride - step - int64_t{sizeof(T)};
  for (int n = 0; n < count; ++n, to += kCount) {
    const int left = points.left[n], top = points.top[n];
    const int64_t offset = top * stride + left * step;
    if (uint32_t(left) < max_left && uint32_t(top) < max_top && offset <= max_offset)
      interpolate_inside<kCount>(s.pixels + offset, stride, points.x[n], points.y[n], to);
    else if (uint32_t(left + 1) > max_left + 1 || uint32_t(top + 1) > max_top + 1)
      std::memcpy(to, &outside, sizeof outside);
    else
      warp_border(warp, left, top, points.x[n], points.y[n], to);
  }
}

template <int kCount, typename Few>
FLOAT_INLINE void warp_tiles(const Warp& warp, int row, int rows, int width, float* pixels,
                             int64_t step) {
  Points points;
  for (int begin = 0; begin < width; begin += kTileWidth) {
    const int count = width - begin < kTileWidth ? width - begin : kTileWidth;
    for (int n = 0; n < rows; ++n) {
      locate(warp, row + n, begin, count, points);
      warp_span<kCount, Few>(warp, points, count, pixels + n * step + int64_t{begin} * kCount);
    }
  }
}

template <typename Few>
FLOAT_INLINE void warp_rows(const Warp& warp, int row, int rows, int width, float* pixels,
                            int64_t step) {
  const int channels = warp.source.channels;
  if (channels == 1) warp_tiles<1, Few>(warp, row, rows, width, pixels, step);
  if (channels == 2) warp_tiles<2, Few>(warp, row, rows, width, pixels, step);
  if (channels == 3) warp_tiles<3, Few>(warp, row, rows, width, pixels, step);
  if (channels == 4) warp_tiles<4, Few>(warp, row, rows, width, pixels, step);
}

FLOAT_INLINE void blend_rows(const float* const rows[], const float* weights, int count,
                             int64_t size, float* sums) {
  int64_t n = 0;
  for (; n + 16 <= size; n += 16) {
    Eight first = {}, second = {};
    for (int k = 0; k < count; ++k) {
      const Eight* const values = reinterpret_cast<const Eight*>(rows[k] + n);
      first += values[0] * weights[k], second += values[1] * weights[k];
    }
    Eight* const to = reinterpret_cast<Eight*>(sums + n);
    to[0] = first, to[1] = second;
  }
  for (; n < size; ++n) {
    float sum = 0;
    for (int k = 0; k < count; ++k) sum += rows[k][n] * weights[k];
    sums[n] = sum;
  }
}

// Sums kSize taps of each output, or as many as there are if it is 0: a loop of a known length is
// faster.
template <int kCount, int kSize>
FLOAT_INLINE void sum_taps(const FloatTaps& taps, const float* pixels, float* to) {
  using T = Pixel<kCount>;
  const int size = kSize ? kSize : taps.size;
  const float* weights = taps.weights.data();
  for (int n = 0; n < taps.count; ++n, to += kCount, weights += size) {
    const float* const from = pixels + int64_t{taps.first[n]} * kCount;
    T sum = load<T>(from) * weights[0];
    for (int k = 1; k < size; ++k) sum += load<T>(from + k * kCount) * weights[k];
    std::memcpy(to, &sum, sizeof sum);
  }
}

template <int kCount>
FLOAT_INLINE void resize_pixels(const FloatTaps& taps, const float* pixels, float* to) {
  if (taps.size == 2) sum_taps<kCount, 2>(taps, pixels, to);
  else if (taps.size == 3) sum_taps<kCount, 3>(taps, pixels, to);
  else if (taps.size == 4) sum_taps<kCount, 4>(taps, pixels, to);
  else if (taps.size == 5) sum_taps<kCount, 5>(taps, pixels, to);
  else if (taps.size == 6) sum_taps<kCount, 6>(taps, pixels, to);
  else sum_taps<kCount, 0>(taps, pixels, to);
}

FLOAT_INLINE void resize_columns(const FloatTaps& taps, const float* pixels, int channels,
                                 float* to) {
  if (channels == 1) resize_pixels<1>(taps, pixels, to);
  if (channels == 2) resize_pixels<2>(taps, pixels, to);
  if (channels == 3) resize_pixels<3>(taps, pixels, to);
  if (channels == 4) resize_pixels<4>(taps, pixels, to);
}

template <int kCount>
FLOAT_INLINE void split_few(const float* pixels, float* const planes[], int count,
                            bool is_reversed) {
  float* to[kCount];
  for (int c = 0; c < kCount; ++c) to[c] = planes[c];
  if (is_reversed) {
    for (int n = 0; n < count; ++n)
      for (int c = 0; c < kCount; ++c) to[c][n] = pixels[kCount * (count - 1 - n) + c];
    return;
  }
  for (int n = 0; n < count; ++n)
    for (int c = 0; c < kCount; ++c) to[c][n] = pixels[kCount * n + c];
}

FLOAT_INLINE void split(const float* pixels, float* const planes[], int channels, int count,
                        bool is_reversed) {
  if (channels == 2) split_few<2>(pixels, planes, count, is_reversed);
  if (channels == 3) split_few<3>(pixels, planes, count, is_reversed);
  if (channels == 4) split_few<4>(pixels, planes, count, is_reversed);
}

// Copies pixels, the last one first, each with what is read and written after three channels.
template <int kCount>
FLOAT_INLINE void reverse_few(const uint8_t* pixels, uint8_t* to, int count) {
  using T = Pixel<kCount>;
  constexpr int64_t kSize = kCount * int64_t{sizeof(float)};
  const uint8_t* from = pixels + (count - 1) * kSize;
  std::memcpy(to, from, size_t(kSize));
  for (int n = 1; n + 1 < count; ++n) {
    const T pixel = load<T>(from - n * kSize);
    std::memcpy(to + n * kSize, &pixel, sizeof pixel);
  }
  std::memcpy(to + (count - 1) * kSize, pixels, size_t(kSize));
}

using Bytes = uint32_t __attribute__((aligned(1), may_alias));  // four, anywhere

FLOAT_INLINE void reverse(const uint8_t* pixels, uint8_t* to, int values, int count) {
  const Bytes* const from = reinterpret_cast<const Bytes*>(pixels);
  if (values == 1)
    for (int n = 0; n < count; ++n) reinterpret_cast<Bytes*>(to)[n] = from[count - 1 - n];
  if (values == 2) reverse_few<2>(pixels, to, count);
  if (values == 3) reverse_few<3>(pixels, to, count);
  if (values == 4) reverse_few<4>(pixels, to, count);
}

template <int kCount>
FLOAT_INLINE void merge_few(const float* const planes[], float* pixels, int count) {
  const float* from[kCount];
  for (int c = 0; c < kCount; ++c) from[c] = planes[c];
  for (int n = 0; n < count; ++n)
    for (int c = 0; c < kCount; ++c) pixels[kCount * n + c] = from[c][n];
}

FLOAT_INLINE void merge(const float* const planes[], float* pixels, int channels, int count) {
  if (channels == 2) merge_few<2>(planes, pixels, count);
  if (channels == 3) merge_few<3>(planes, pixels, count);
  if (channels == 4) merge_few<4>(planes, pixels, count);
}

FLOAT_INLINE void normalize(const float* from, float* to, int64_t count, const Conversion& k) {
  int64_t n = 0;
  for (; n + kPeriod <= count; n += kPeriod)
    for (int i = 0; i < kPeriod; ++i) to[n + i] = (from[n + i] - k.mean[i]) / k.std[i];
  for (int i = 0; n < count; ++n, ++i) to[n] = (from[n] - k.mean[i]) / k.std[i];
}

}  // namespace gpupipe::floats
