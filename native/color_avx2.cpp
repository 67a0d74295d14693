// The functions of colours for AVX2.
#if defined(__x86_64__)

#include "avx2.h"
#include "filter_rows.h"

namespace gpupipe {
namespace {

constexpr int kVector = 32;  // bytes

AVX2_INLINE __m256i load(const uint8_t* bytes) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(bytes));
}

// Looks 32 levels up: their lower halves in each 16 entries of the table, of which the bits of the
// upper halves choose one, two at a time.
AVX2_INLINE __m256i look_up_vector(const __m256i parts[16], __m256i levels) {
  const __m256i low = _mm256_and_si256(levels, _mm256_set1_epi8(15));
  __m256i found[16];
  for (int k = 0; k < 16; ++k) found[k] = _mm256_shuffle_epi8(parts[k], low);
  for (int bit = 4, count = 8; count; ++bit, count /= 2) {
    const __m256i chooses = _mm256_sll_epi16(levels, _mm_cvtsi32_si128(7 - bit));
    for (int k = 0; k < count; ++k)
      found[k] = _mm256_blendv_epi8(found[2 * k], found[2 * k + 1], chooses);
  }
  return found[0];
}

AVX2 void look_up(const uint8_t* from, uint8_t* to, int64_t count, const uint8_t* table) {
  __m256i parts[16];
  for (int k = 0; k < 16; ++k)
    parts[k] = _mm256_broadcastsi128_si256(
        _mm_loadu_si128(reinterpret_cast<const __m128i*>(table + 16 * k)));
  int64_t n = 0;
  for (; n + kVector <= count; n += kVector)
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + n), look_up_vector(parts, load(from + n)));
  color::look_up_each(from, to, n, count, table);
}

AVX2 void split(const uint8_t* pixels, uint8_t* const planes[], int count) {
  avx2::split(pixels, planes, count, false);
}

AVX2 void merge(const uint8_t* const planes[], uint8_t* pixels, int count) {
  avx2::merge(planes, pixels, count);
}

#define COLOR_TARGET AVX2
#include "color_functions.h"

}  // namespace

const ColorVariant kColorAvx2 = COLOR_VARIANT;

}  // namespace gpupipe

#endif
