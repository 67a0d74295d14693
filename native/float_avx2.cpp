// The functions for images of float32 for AVX2.
#if defined(__x86_64__)

#include "avx2.h"

#define FLOAT_INLINE AVX2_INLINE
#include "float_parts.h"

namespace gpupipe {
namespace avx2 {

AVX2 void stream(const float* from, float* to, int64_t count) {
  constexpr int kLine = 16;  // floats in a cache line
  const int64_t head = -(reinterpret_cast<uintptr_t>(to) / sizeof(float)) % kLine;
  const int64_t end = count - (count - head) % kLine;
  if (count < 2 * kLine) {
    std::memcpy(to, from, size_t(count) * sizeof(float));
    return;
  }
  std::memcpy(to, from, size_t(head) * sizeof(float));
  for (int64_t n = head; n < end; n += 8) _mm256_stream_ps(to + n, _mm256_loadu_ps(from + n));
  std::memcpy(to + end, from + end, size_t(count - end) * sizeof(float));
}

}  // namespace avx2

namespace {

using avx2::stream;

// Two pixels of three or four channels.
struct Few {
  AVX2_INLINE static void stream(const float* from, float* to) {
    for (int n = 0; n < floats::kFew; n += 8) _mm256_stream_ps(to + n, _mm256_load_ps(from + n));
  }

  AVX2_INLINE static __m256 load(const uint8_t* pixels, const int32_t* at) {
    const auto find = [=](int n) { return reinterpret_cast<const float*>(pixels + at[n]); };
    return _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(find(0))),
                                _mm_loadu_ps(find(1)), 1);
  }

  // The two values, each four times.
  AVX2_INLINE static __m256 spread(const float* values) {
    return _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_broadcast_ss(values)),
                                _mm_broadcast_ss(values + 1), 1);
  }

  AVX2_INLINE static __m256 blend(__m256 a, __m256 b, __m256 part) {
    return _mm256_add_ps(a, _mm256_mul_ps(_mm256_sub_ps(b, a), part));
  }

  // Writes up to two values more.
  template <int kCount>
  AVX2_INLINE static int warp(const Image& s, const floats::Points& points, int count,
                              float* to) {
    if (kCount < 3) return 0;
    constexpr int kStep = kCount * int(sizeof(float));
    const uint8_t *const above = s.pixels, *const below = above + s.stride;
    const __m256i order = _mm256_setr_epi32(0, 1, 2, 4, 5, 6, 7, 7);
    int n = 0;
    for (; n + 2 <= count; n += 2) {
      const int32_t* const at = points.offset + n;
      const __m256 x = spread(points.x + n), y = spread(points.y + n);
      const __m256 value = blend(blend(load(above, at), load(above + kStep, at), x),
                                 blend(load(below, at), load(below + kStep, at), x), y);
      _mm256_storeu_ps(to + n * kCount,
                       kCount == 3 ? _mm256_permutevar8x32_ps(value, order) : value);
    }
    return n;
  }
};

#define FLOAT_TARGET AVX2
#include "float_functions.h"

}  // namespace

const FloatVariant kFloatAvx2 = FLOAT_VARIANT;

}  // namespace gpupipe

#endif
