// A resize in two passes: rows first, whose loops the compiler vectorises, then columns.
#include <immintrin.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels.h"

namespace {

struct Taps {
  std::vector<int> first, size;
  std::vector<float> weights;
  int most;
};

Taps weigh(int input, int output, int begin, int count) {
  const float scale = float(input) / float(output), reach = std::max(scale, 1.0f);
  Taps taps;
  taps.most = int(std::ceil(reach)) * 2 + 1;
  taps.weights.assign(size_t(count) * taps.most, 0);
  for (int n = 0; n < count; ++n) {
    const float center = (float(begin + n) + 0.5f) * scale;
    const int first = std::max(int(center - reach + 0.5f), 0);
    const int size = std::min(int(center + reach + 0.5f), input) - first;
    float* weights = taps.weights.data() + size_t(n) * taps.most;
    float total = 0;
    for (int k = 0; k < size; ++k) {
      weights[k] = std::max(0.0f, 1 - std::abs((float(first + k) + 0.5f - center) / reach));
      total += weights[k];
    }
    for (int k = 0; k < size; ++k) weights[k] /= total;
    taps.first.push_back(first), taps.size.push_back(size);
  }
  return taps;
}

void blend_rows(const uint8_t* from, size_t stride, const float* weights, int count, int size,
                float* to) {
  std::fill(to, to + size, 0.0f);
  for (int k = 0; k < count; ++k)
    for (int n = 0; n < size; ++n) to[n] += weights[k] * float(from[k * stride + n]);
}

// Writes one row of planes from a row of RGB.
void blend_columns(const float* from, const Taps& taps, bool flips, const Floats& floats,
                   float* const planes[3]) {
  const int width = int(taps.first.size());
  const __m128 scale = _mm_setr_ps(floats.scale[0], floats.scale[1], floats.scale[2], 0);
  const __m128 offset = _mm_setr_ps(floats.offset[0], floats.offset[1], floats.offset[2], 0);
  for (int begin = 0; begin < width; begin += 4) {
    __m128 sums[4] = {};
    for (int k = 0; k < 4; ++k) {
      const int column = std::min(begin + k, width - 1), n = flips ? width - 1 - column : column;
      const float* weights = taps.weights.data() + size_t(n) * taps.most;
      for (int t = 0; t < taps.size[n]; ++t)
        sums[k] = _mm_fmadd_ps(_mm_loadu_ps(from + (taps.first[n] + t) * 3),
                               _mm_set1_ps(weights[t]), sums[k]);
      sums[k] = _mm_fmadd_ps(sums[k], scale, offset);
    }
    _MM_TRANSPOSE4_PS(sums[0], sums[1], sums[2], sums[3]);
    const size_t bytes = size_t(std::min(4, width - begin)) * sizeof(float);
    for (int c = 0; c < 3; ++c) std::memcpy(planes[c] + begin, &sums[c], bytes);
  }
}

}  // namespace

void resize(const Pixels& source, Size size, Window window, bool flips, const Floats& floats,
            float* planes) {
  const Taps rows = weigh(source.height, size.height, window.top, window.height);
  const Taps columns = weigh(source.width, size.width, window.left, window.width);
  const size_t stride = size_t(source.width) * 3;
  thread_local std::vector<float> blended;
  blended.resize(stride + 4);
  for (int row = 0; row < window.height; ++row) {
    blend_rows(source.bytes.data() + rows.first[row] * stride, stride,
               rows.weights.data() + size_t(row) * rows.most, rows.size[row], int(stride),
               blended.data());
    float* places[3];
    for (int c = 0; c < 3; ++c)
      places[c] = planes + (int64_t{c} * window.height + row) * window.width;
    blend_columns(blended.data(), columns, flips, floats, places);
  }
}
