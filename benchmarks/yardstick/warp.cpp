// An affine warp of 8 pixels at a time, straight to floats.
#include <immintrin.h>

#include "kernels.h"

namespace {

struct Corners {
  __m256i pixels[4];
  __m256 weights[4];
};

// The neighbours of 8 points, 4 bytes each; those outside of the image are 0.
inline Corners gather(const Pixels& source, __m256 x, __m256 y) {
  const __m256 left = _mm256_floor_ps(x), top = _mm256_floor_ps(y);
  const __m256 one = _mm256_set1_ps(1), wx = _mm256_sub_ps(x, left), wy = _mm256_sub_ps(y, top);
  const __m256 ux = _mm256_sub_ps(one, wx), uy = _mm256_sub_ps(one, wy);
  Corners corners;
  for (int k = 0; k < 4; ++k) {
    const __m256i column = _mm256_add_epi32(_mm256_cvttps_epi32(left), _mm256_set1_epi32(k & 1));
    const __m256i row = _mm256_add_epi32(_mm256_cvttps_epi32(top), _mm256_set1_epi32(k >> 1));
    const __m256i lowest = _mm256_set1_epi32(-1);
    __m256i is_inside = _mm256_and_si256(_mm256_cmpgt_epi32(column, lowest),
                                         _mm256_cmpgt_epi32(row, lowest));
    is_inside = _mm256_and_si256(
        is_inside,
        _mm256_and_si256(_mm256_cmpgt_epi32(_mm256_set1_epi32(source.width), column),
                         _mm256_cmpgt_epi32(_mm256_set1_epi32(source.height), row)));
    const __m256i at = _mm256_add_epi32(
        _mm256_mullo_epi32(row, _mm256_set1_epi32(source.width * 3)),
        _mm256_mullo_epi32(column, _mm256_set1_epi32(3)));
    corners.pixels[k] =
        _mm256_mask_i32gather_epi32(_mm256_setzero_si256(),
                                    reinterpret_cast<const int*>(source.bytes.data()), at,
                                    is_inside, 1);
    corners.weights[k] = _mm256_mul_ps(k & 1 ? wx : ux, k >> 1 ? wy : uy);
  }
  return corners;
}

inline __m256 blend(const Corners& corners, int channel) {
  __m256 sum = _mm256_setzero_ps();
  for (int k = 0; k < 4; ++k) {
    const __m256i level = _mm256_and_si256(_mm256_srli_epi32(corners.pixels[k], 8 * channel),
                                           _mm256_set1_epi32(255));
    sum = _mm256_fmadd_ps(_mm256_cvtepi32_ps(level), corners.weights[k], sum);
  }
  return sum;
}

}  // namespace

void warp(const Pixels& source, const float m[6], int height, int width, const Floats& floats,
          float* planes) {
  const __m256 steps = _mm256_setr_ps(0, 1, 2, 3, 4, 5, 6, 7);
  const __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  for (int row = 0; row < height; ++row) {
    for (int column = 0; column < width; column += 8) {
      const __m256 u = _mm256_add_ps(steps, _mm256_set1_ps(float(column)));
      const __m256 x = _mm256_fmadd_ps(u, _mm256_set1_ps(m[0]),
                                       _mm256_set1_ps(m[1] * float(row) + m[2]));
      const __m256 y = _mm256_fmadd_ps(u, _mm256_set1_ps(m[3]),
                                       _mm256_set1_ps(m[4] * float(row) + m[5]));
      const Corners corners = gather(source, x, y);
      const __m256i rest = _mm256_cmpgt_epi32(_mm256_set1_epi32(width - column), lanes);
      for (int c = 0; c < 3; ++c) {
        const __m256 value = _mm256_fmadd_ps(blend(corners, c), _mm256_set1_ps(floats.scale[c]),
                                             _mm256_set1_ps(floats.offset[c]));
        float* const to = planes + (int64_t{c} * height + row) * width + column;
        if (column + 8 <= width) _mm256_storeu_ps(to, value);
        else _mm256_maskstore_ps(to, rest, value);
      }
    }
  }
}
