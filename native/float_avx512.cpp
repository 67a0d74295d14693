// The functions for images of float32 for AVX-512.
#if defined(__x86_64__)

#include "avx512.h"

#define FLOAT_INLINE AVX512_INLINE
#include "float_parts.h"

namespace gpupipe {
namespace {

using avx2::stream;

// Four pixels of three or four channels.
struct Few {
  AVX512_INLINE static void stream(const float* from, float* to) {
    for (int n = 0; n < floats::kFew; n += 16) _mm512_stream_ps(to + n, _mm512_load_ps(from + n));
  }

  AVX512_INLINE static __m512 load(const uint8_t* pixels, const int32_t* at) {
    const auto find = [=](int n) { return reinterpret_cast<const float*>(pixels + at[n]); };
    const __m256 low = _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(find(0))),
                                            _mm_loadu_ps(find(1)), 1);
    const __m256 high = _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(find(2))),
                                             _mm_loadu_ps(find(3)), 1);
    return _mm512_castpd_ps(_mm512_insertf64x4(_mm512_castps_pd(_mm512_castps256_ps512(low)),
                                               _mm256_castps_pd(high), 1));
  }

  // The four values, each four times.
  AVX512_INLINE static __m512 spread(const float* values) {
    const __m512i order = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
    return _mm512_permutexvar_ps(order, _mm512_castps128_ps512(_mm_loadu_ps(values)));
  }

  AVX512_INLINE static __m512 blend(__m512 a, __m512 b, __m512 part) {
    return _mm512_add_ps(a, _mm512_mul_ps(_mm512_sub_ps(b, a), part));
  }

  // Writes up to four values more.
  template <int kCount>
  AVX512_INLINE static int warp(const Image& s, const floats::Points& points, int count,
                                float* to) {
    if (kCount < 3) return 0;
    constexpr int kStep = kCount * int(sizeof(float));
    const uint8_t *const above = s.pixels, *const below = above + s.stride;
    const __m512i order =
        _mm512_setr_epi32(0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, 15, 15, 15, 15);
    int n = 0;
    for (; n + 4 <= count; n += 4) {
      const int32_t* const at = points.offset + n;
      const __m512 x = spread(points.x + n), y = spread(points.y + n);
      const __m512 value = blend(blend(load(above, at), load(above + kStep, at), x),
                                 blend(load(below, at), load(below + kStep, at), x), y);
      _mm512_storeu_ps(to + n * kCount, kCount == 3 ? _mm512_permutexvar_ps(order, value) : value);
    }
    return n;
  }
};

#define FLOAT_TARGET AVX512
#include "float_functions.h"

}  // namespace

const FloatVariant kFloatAvx512 = FLOAT_VARIANT;

}  // namespace gpupipe

#endif
