// The row functions pixel by pixel: the scalar variant, and what others do at the ends of rows.
#pragma once

#include <cmath>
#include <cstring>

#include "variant.h"

namespace gpupipe {

constexpr int kFractionBits = 16;  // of a coordinate: vectors of 32 bits hold it up to pixel 32767
constexpr int kWeightBits = 14;    // of a weight: 1 is 1 << 14, which fits int16
constexpr int kWeightOne = 1 << kWeightBits;
constexpr int kHalfBits = 7;  // fraction bits of a level between the two passes: 15 bits fit int16
constexpr int kSumBits = kWeightBits + kHalfBits;  // fraction bits of a level after both
constexpr int kRoundWeight = 1 << (kFractionBits - kWeightBits - 1);  // half of a weight's last bit

// A coordinate outside of an image of smaller sides fits 32 bits, with its fraction.
constexpr int kMaxPerspective = 16000;

// Returns a coordinate with 16 fraction bits. What is outside of every image stays outside.
inline int64_t to_fixed(double coordinate) {
  const double max = 1e9;  // far outside of every image, and it fits 64 bits with its fraction
  const double from = coordinate > -max ? coordinate : -max;  // so NaN is outside
  return std::llrint((from < max ? from : max) * (1 << kFractionBits));
}

// Returns the coordinates of the first pixel of a block, with 16 fraction bits.
inline void locate_block(const Warp& warp, int row, int column, int64_t* x, int64_t* y) {
  const double* m = warp.matrix;
  const double u = m[0] * column + (m[1] * row + m[2]);
  const double v = m[3] * column + (m[4] * row + m[5]);
  *x = to_fixed(u) + kRoundWeight;
  *y = to_fixed(v) + kRoundWeight;
}

// Returns the coordinates of a pixel of a warp of perspective, as locate_block does.
inline void locate_pixel(const Warp& warp, int row, int column, int64_t* x, int64_t* y) {
  const double* m = warp.matrix;
  const double w = m[6] * column + (m[7] * row + m[8]);
  *x = to_fixed((m[0] * column + (m[1] * row + m[2])) / w) + kRoundWeight;
  *y = to_fixed((m[3] * column + (m[4] * row + m[5])) / w) + kRoundWeight;
}

// Kernels that read large images warp tiles of so many pixels and rows: a turned image shows no row
// in order, so that each pixel of a whole row would wait for memory.
constexpr int kTileWidth = 32, kTileHeight = 16;

// Rounds a sum of weighted levels to the nearest level, halves to even as torch does.
inline uint8_t round_sum(uint32_t sum) {
  return (sum + (1u << (kSumBits - 1)) - 1 + ((sum >> kSumBits) & 1)) >> kSumBits;
}

// Interpolates one level between four neighbours, of which those in a row are `step` bytes apart.
// The weights have kWeightBits.
inline uint8_t interpolate(const uint8_t* top, const uint8_t* bottom, int step, uint32_t wx,
                           uint32_t wy) {
  const uint32_t round = 1u << (kWeightBits - kHalfBits - 1);
  const int shift = kWeightBits - kHalfBits;
  const uint32_t above = (top[0] * (kWeightOne - wx) + top[step] * wx + round) >> shift;
  const uint32_t below = (bottom[0] * (kWeightOne - wx) + bottom[step] * wx + round) >> shift;
  return round_sum(above * (kWeightOne - wy) + below * wy);
}

// Interpolates at the border, where neighbours outside are 0 and a mask of ones is 0 beside them.
// If there is a fill, torchvision weighs the result by that mask: mask * (value - fill) + fill.
inline uint8_t interpolate_border(const Warp& warp, int channel, int64_t x, int64_t y, uint32_t wx,
                                  uint32_t wy) {
  const Image& s = warp.source;
  double sum = 0, mask = 0;
  for (int dy = 0; dy < 2; ++dy) {
    for (int dx = 0; dx < 2; ++dx) {
      if (x + dx < 0 || x + dx >= s.width || y + dy < 0 || y + dy >= s.height) continue;
      const double weight = double(dx ? wx : kWeightOne - wx) * double(dy ? wy : kWeightOne - wy);
      sum += weight * s.pixels[(y + dy) * s.stride + (x + dx) * s.channels + channel];
      mask += weight;
    }
  }
  const double one = double(kWeightOne) * kWeightOne;
  const double fill = warp.fill[channel];
  const double value = warp.has_fill ? (sum / one - fill) * (mask / one) + fill : sum / one;
  const double level = std::nearbyint(value);
  return level < 0 ? 0 : level > 255 ? 255 : uint8_t(level);
}

// Warps the pixel whose coordinates are x and y to index n of the planes.
inline void warp_pixel(const Warp& warp, int64_t x, int64_t y, int n, uint8_t* const planes[]) {
  const Image& s = warp.source;
  const int64_t left = x >> kFractionBits, top = y >> kFractionBits;
  if (left < -1 || top < -1 || left >= s.width || top >= s.height) {
    for (int c = 0; c < s.channels; ++c) planes[c][n] = warp.filled[c];
    return;
  }
  const int64_t fraction = (1 << kFractionBits) - 1;
  const uint32_t wx = (x & fraction) >> (kFractionBits - kWeightBits);
  const uint32_t wy = (y & fraction) >> (kFractionBits - kWeightBits);
  if (left >= 0 && top >= 0 && left + 1 < s.width && top + 1 < s.height) {
    const uint8_t* corner = s.pixels + top * s.stride + left * s.channels;
    for (int c = 0; c < s.channels; ++c)
      planes[c][n] = interpolate(corner + c, corner + s.stride + c, s.channels, wx, wy);
  } else {
    for (int c = 0; c < s.channels; ++c)
      planes[c][n] = interpolate_border(warp, c, left, top, wx, wy);
  }
}

inline void warp_block(const Warp& warp, int64_t x, int64_t y, int column, int count,
                       uint8_t* const planes[]) {
  for (int n = 0; n < count; ++n)
    warp_pixel(warp, x + warp.dx[n], y + warp.dy[n], column + n, planes);
}

// Warps pixels of a row from `begin` on, one by one.
inline void warp_pixels(const Warp& warp, int row, int begin, int width, uint8_t* const planes[]) {
  for (int column = begin; column < width; column += kBlock) {
    const int count = width - column < kBlock ? width - column : kBlock;
    int64_t x, y;
    if (!warp.is_perspective) {
      locate_block(warp, row, column, &x, &y);
      warp_block(warp, x, y, column, count, planes);
      continue;
    }
    for (int n = column; n < column + count; ++n) {
      locate_pixel(warp, row, n, &x, &y);
      warp_pixel(warp, x, y, n, planes);
    }
  }
}

inline void split_pixels(const uint8_t* pixels, uint8_t* const planes[], int begin, int width,
                         bool is_reversed) {
  for (int n = begin; n < width; ++n) {
    const uint8_t* pixel = pixels + kChannels * (is_reversed ? width - 1 - n : n);
    for (int c = 0; c < kChannels; ++c) planes[c][n] = pixel[c];
  }
}

inline void merge_pixels(const uint8_t* const planes[], uint8_t* pixels, int begin, int width) {
  for (int n = begin; n < width; ++n)
    for (int c = 0; c < kChannels; ++c) pixels[kChannels * n + c] = planes[c][n];
}

inline void reverse_pixels(const uint8_t* pixels, uint8_t* to, int begin, int width) {
  for (int n = begin; n < width; ++n)
    std::memcpy(to + kChannels * n, pixels + kChannels * (width - 1 - n), kChannels);
}

// Four pixels of a column become twelve bytes of a row.
inline void transpose_rgb(const uint8_t* pixels, int64_t stride, uint8_t* to, int64_t to_stride,
                          int rows, int columns) {
  const auto load = [=](int y, int x) {
    uint32_t bytes;
    std::memcpy(&bytes, pixels + y * stride + kChannels * x, sizeof bytes);
    return uint64_t{bytes};
  };
  constexpr uint64_t kPixel = 0xffffff;
  for (int y = 0; y < rows; y += kSideBlock)
    for (int x = 0; x < columns; ++x) {
      const uint64_t a = load(y, x) & kPixel, b = load(y + 1, x) & kPixel;
      const uint64_t c = load(y + 2, x) & kPixel, d = load(y + 3, x);
      const uint64_t first = a | b << 24 | c << 48;
      const uint32_t last = uint32_t(c >> 16 | d << 8);
      uint8_t* const at = to + x * to_stride + kChannels * y;
      std::memcpy(at, &first, sizeof first);
      std::memcpy(at + sizeof first, &last, sizeof last);
    }
}

template <typename Value>
void look_up(const uint8_t* levels, Value* values, int64_t begin, int64_t count,
             const Conversion& k) {
  const Value* tables[kMaxChannels];
  for (int c = 0; c < k.channels; ++c) tables[c] = reinterpret_cast<const Value*>(k.table[c]);
  if (k.channels == 1) {
    for (int64_t n = begin; n < count; ++n) values[n] = tables[0][levels[n]];
    return;
  }
  for (int64_t n = begin; n < count; ++n) values[n] = tables[n % k.channels][levels[n]];
}

// Converts the levels from `begin` on through the table.
inline void convert_by_table(const uint8_t* levels, uint8_t* values, int64_t begin, int64_t count,
                             const Conversion& k) {
  if (k.is_identity) {
    std::memcpy(values + begin, levels + begin, count - begin);
  } else if (k.item_size == 1) {
    look_up(levels, values, begin, count, k);
  } else if (k.item_size == 2) {
    look_up(levels, reinterpret_cast<uint16_t*>(values), begin, count, k);
  } else if (k.item_size == 4) {
    look_up(levels, reinterpret_cast<uint32_t*>(values), begin, count, k);
  } else {
    look_up(levels, reinterpret_cast<uint64_t*>(values), begin, count, k);
  }
}

// Rounds a sum of weighted levels of a resize.
inline uint8_t round_taps(int32_t sum, int precision) {
  const int32_t level = (sum + (1 << (precision - 1))) >> precision;
  return uint8_t(level < 0 ? 0 : level > 255 ? 255 : level);
}

inline void resize_pixels(const Columns& columns, const uint8_t* a, const uint8_t* b,
                          uint16_t* pairs) {
  const Taps& taps = columns.taps;
  const int channels = columns.channels;
  for (int n = 0; n < taps.count; ++n) {
    const int16_t* weights = taps.weights.data() + size_t(n) * taps.max_size;
    const int64_t begin = int64_t{taps.first[n]} * channels;
    for (int c = 0; c < channels; ++c) {
      int32_t sum_a = 0, sum_b = 0;
      for (int k = 0; k < taps.sizes[n]; ++k) {
        sum_a += weights[k] * a[begin + k * channels + c];
        sum_b += weights[k] * b[begin + k * channels + c];
      }
      pairs[2 * (channels * n + c)] = round_taps(sum_a, taps.precision);
      pairs[2 * (channels * n + c) + 1] = round_taps(sum_b, taps.precision);
    }
  }
}

inline void blend_pairs(const uint16_t* const rows[], const int16_t* weights, int count,
                        int precision, int size, uint8_t* levels) {
  for (int n = 0; n < size; ++n) {
    int32_t sum = 0;
    for (int k = 0; k < count; ++k)
      sum += weights[2 * k] * rows[k][2 * n] + weights[2 * k + 1] * rows[k][2 * n + 1];
    levels[n] = round_taps(sum, precision);
  }
}

}  // namespace gpupipe
