// The variant for AVX2: the resize.
#if defined(__x86_64__)

#include <algorithm>

#include "avx2.h"

namespace gpupipe::avx2 {
namespace {

// Up to so many taps, all outputs are summed over as many: a loop of a known length is faster.
constexpr int kShortTaps = 8;

AVX2_INLINE __m256i broadcast_pair(const int16_t* weights) {
  int32_t pair;
  std::memcpy(&pair, weights, sizeof(pair));
  return _mm256_set1_epi32(pair);
}

// Loads 16 or 8 bytes of two rows.
AVX2_INLINE __m256i load_rows(const uint8_t* a, const uint8_t* b) {
  return _mm256_inserti128_si256(
      _mm256_castsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(a))),
      _mm_loadu_si128(reinterpret_cast<const __m128i*>(b)), 1);
}

AVX2_INLINE __m256i load_halves(const uint8_t* a, const uint8_t* b) {
  return _mm256_inserti128_si256(
      _mm256_castsi128_si256(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(a))),
      _mm_loadl_epi64(reinterpret_cast<const __m128i*>(b)), 1);
}

// A shuffle to words, each channel of the two pixels from byte `at` on: of RGB, R0 R1 G0 G1 B0 B1 0
// 0.
template <int kCount>
AVX2_INLINE __m256i pair_pixels(int at) {
  const auto byte = [at](int channel, int pixel) {
    return channel < kCount ? char(at + channel + pixel * kCount) : char(-128);
  };
  const char z = -128;
  return _mm256_broadcastsi128_si256(
      _mm_setr_epi8(byte(0, 0), z, byte(0, 1), z, byte(1, 0), z, byte(1, 1), z, byte(2, 0), z,
                    byte(2, 1), z, byte(3, 0), z, byte(3, 1), z));
}

AVX2_INLINE __m256i add_pair(__m256i sum, __m256i pixels, __m256i shuffle, const int16_t* weights) {
  const __m256i words = _mm256_shuffle_epi8(pixels, shuffle);
  return _mm256_add_epi32(sum, _mm256_madd_epi16(words, broadcast_pair(weights)));
}

// Sums the taps of one output in two rows: four channels of each, of which missing ones are 0.
template <int kCount>
AVX2_INLINE __m256i sum_taps(const uint8_t* a, const uint8_t* b, const int16_t* weights, int pairs,
                             __m256i sum) {
  int k = 0;
  for (; k + 2 <= pairs; k += 2) {
    const __m256i pixels = load_rows(a + 2 * k * kCount, b + 2 * k * kCount);
    sum = add_pair(sum, pixels, pair_pixels<kCount>(0), weights + 2 * k);
    sum = add_pair(sum, pixels, pair_pixels<kCount>(2 * kCount), weights + 2 * k + 2);
  }
  if (k < pairs) {
    const __m256i pixels = load_halves(a + 2 * k * kCount, b + 2 * k * kCount);
    sum = add_pair(sum, pixels, pair_pixels<kCount>(0), weights + 2 * k);
  }
  return sum;
}

AVX2_INLINE void store(uint16_t* pairs, __m128i words) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(pairs), words);
}

template <int kCount, int kPairs>
AVX2_INLINE void resize_pixels_in_twos(const Taps& taps, const uint8_t* a, const uint8_t* b,
                                       uint16_t* pairs) {
  const __m256i round = _mm256_set1_epi32(1 << (taps.precision - 1));
  const __m128i shift = _mm_cvtsi32_si128(taps.precision);
  for (int n = 0; n < taps.count; n += 2) {
    __m256i sums[2];
    for (int k = 0; k < 2; ++k) {
      const int output = std::min(n + k, taps.count - 1);
      const int64_t at = int64_t{taps.first[output]} * kCount;
      const int count = kPairs ? kPairs : (taps.sizes[output] + 1) / 2;
      const int16_t* const weights = taps.weights.data() + size_t(output) * taps.max_size;
      sums[k] = sum_taps<kCount>(a + at, b + at, weights, count, round);
      sums[k] = _mm256_sra_epi32(sums[k], shift);
    }
    const __m256i words = _mm256_min_epu16(_mm256_packus_epi32(sums[0], sums[1]),
                                           _mm256_set1_epi16(255));
    const __m128i of_a = _mm256_castsi256_si128(words), of_b = _mm256_extracti128_si256(words, 1);
    store(pairs + 2 * kCount * n, _mm_unpacklo_epi16(of_a, of_b));
    store(pairs + 2 * kCount * (n + 1), _mm_unpackhi_epi16(of_a, of_b));
  }
}

template <int kCount>
AVX2_INLINE void resize_any(const Taps& taps, const uint8_t* a, const uint8_t* b,
                            uint16_t* pairs) {
  if (taps.max_size == 2) resize_pixels_in_twos<kCount, 1>(taps, a, b, pairs);
  else if (taps.max_size == 4) resize_pixels_in_twos<kCount, 2>(taps, a, b, pairs);
  else if (taps.max_size == 6) resize_pixels_in_twos<kCount, 3>(taps, a, b, pairs);
  else if (taps.max_size == kShortTaps)
    resize_pixels_in_twos<kCount, kShortTaps / 2>(taps, a, b, pairs);
  else resize_pixels_in_twos<kCount, 0>(taps, a, b, pairs);
}

}  // namespace

void prepare_columns(Columns&) {}

AVX2 void resize_columns(const Columns& columns, const uint8_t* a, const uint8_t* b,
                         uint16_t* pairs) {
  const Taps& taps = columns.taps;
  if (columns.channels == 1) resize_any<1>(taps, a, b, pairs);
  if (columns.channels == 2) resize_any<2>(taps, a, b, pairs);
  if (columns.channels == 3) resize_any<3>(taps, a, b, pairs);
  if (columns.channels == 4) resize_any<4>(taps, a, b, pairs);
}

AVX2 void blend_rows(const uint16_t* const rows[], const int16_t* weights, int count,
                     int precision, int size, uint8_t* levels) {
  const __m256i round = _mm256_set1_epi32(1 << (precision - 1));
  const __m128i shift = _mm_cvtsi32_si128(precision);
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  for (int n = 0; n < size; n += 32) {
    __m256i sums[4] = {round, round, round, round};
    for (int k = 0; k < count; ++k) {
      const __m256i weight = broadcast_pair(weights + 2 * k);
      const __m256i* from = reinterpret_cast<const __m256i*>(rows[k] + 2 * n);
      for (int i = 0; i < 4; ++i)
        sums[i] = _mm256_add_epi32(sums[i],
                                   _mm256_madd_epi16(_mm256_loadu_si256(from + i), weight));
    }
    for (int i = 0; i < 4; ++i) sums[i] = _mm256_sra_epi32(sums[i], shift);
    const __m256i bytes = _mm256_packus_epi16(_mm256_packs_epi32(sums[0], sums[1]),
                                              _mm256_packs_epi32(sums[2], sums[3]));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(levels + n),
                        _mm256_permutevar8x32_epi32(bytes, order));
  }
}

}  // namespace gpupipe::avx2

#endif
