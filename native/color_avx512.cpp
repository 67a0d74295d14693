// The functions of colours for AVX-512 with VBMI: whole tables in four registers.
#if defined(__x86_64__)

#include "avx512.h"
#include "filter_rows.h"

namespace gpupipe {
namespace {

using avx512::kVector;
using avx512::mask_of;
using avx512::merge;

AVX512 void look_up(const uint8_t* from, uint8_t* to, int64_t count, const uint8_t* table) {
  const __m512i a = _mm512_loadu_si512(table), b = _mm512_loadu_si512(table + kVector);
  const __m512i c = _mm512_loadu_si512(table + 2 * kVector);
  const __m512i d = _mm512_loadu_si512(table + 3 * kVector);
  const auto find = [=](__m512i levels) AVX512 {
    const __m512i low = _mm512_permutex2var_epi8(a, levels, b);
    const __m512i high = _mm512_permutex2var_epi8(c, levels, d);
    return _mm512_mask_blend_epi8(_mm512_movepi8_mask(levels), low, high);
  };
  int64_t n = 0;
  for (; n + kVector <= count; n += kVector)
    _mm512_storeu_si512(to + n, find(_mm512_loadu_si512(from + n)));
  const __mmask64 rest = mask_of(count - n);
  _mm512_mask_storeu_epi8(to + n, rest, find(_mm512_maskz_loadu_epi8(rest, from + n)));
}

AVX512 void split(const uint8_t* pixels, uint8_t* const planes[], int count) {
  avx512::split(pixels, planes, count, false);
}

// The weights of the luma as digits of 8 bits with a sign, in each four bytes: 1, 2^8, 2^16.
struct LumaDigits {
  int32_t digits[3] = {};
  alignas(kVector) uint8_t order[kVector] = {};  // the three bytes of each of 16 pixels

  LumaDigits() {
    for (int c = 0; c < kChannels; ++c) {
      int rest = int(kLuma[c]);
      for (int32_t& digit : digits) {
        const int8_t low = int8_t(uint8_t(rest & 255));
        digit |= int32_t(uint8_t(low)) << (8 * c);
        rest = (rest - low) / 256;
      }
      for (int n = 0; n < kVector / 4; ++n) order[4 * n + c] = uint8_t(kChannels * n + c);
    }
  }
};

const LumaDigits kLumaDigits;

// Calls take(luma, n) with 32 bits for each of 16 interleaved pixels from pixel n on. What follows
// the last pixel has no luma.
template <typename Take>
AVX512_INLINE void each_luma(const uint8_t* pixels, int count, const Take& take) {
  const __m512i order = _mm512_load_si512(kLumaDigits.order);
  const __m512i low = _mm512_set1_epi32(kLumaDigits.digits[0]);
  const __m512i middle = _mm512_set1_epi32(kLumaDigits.digits[1]);
  const __m512i high = _mm512_set1_epi32(kLumaDigits.digits[2]);
  const __m512i round = _mm512_set1_epi32(int(kLumaRound)), zero = _mm512_setzero_si512();
  const int64_t bytes = int64_t{count} * kChannels;
  for (int n = 0; n < count; n += kVector / 4) {
    const int64_t at = int64_t{n} * kChannels;
    const __m512i loaded = at + kVector <= bytes
                               ? _mm512_loadu_si512(pixels + at)
                               : _mm512_maskz_loadu_epi8(mask_of(bytes - at), pixels + at);
    const __m512i levels = _mm512_maskz_permutexvar_epi8(0x7777777777777777, order, loaded);
    const __m512i top = _mm512_slli_epi32(_mm512_dpbusd_epi32(zero, levels, high), 8);
    const __m512i upper = _mm512_slli_epi32(_mm512_dpbusd_epi32(top, levels, middle), 8);
    const __m512i luma = _mm512_add_epi32(upper, _mm512_dpbusd_epi32(round, levels, low));
    take(_mm512_srli_epi32(luma, kLumaBits), n);
  }
}

AVX512 uint32_t sum_luma(const uint8_t* pixels, int count) {
  __m512i sum = _mm512_setzero_si512();
  each_luma(pixels, count, [&](__m512i luma, int) AVX512 { sum = _mm512_add_epi32(sum, luma); });
  return uint32_t(_mm512_reduce_add_epi32(sum));
}

AVX512 void read_gray(const uint8_t* pixels, uint8_t* gray, int count) {
  each_luma(pixels, count, [=](__m512i luma, int n) AVX512 {
    _mm512_mask_cvtepi32_storeu_epi8(gray + n, __mmask16(mask_of(count - n)), luma);
  });
}

#define HAS_LUMA
#define COLOR_TARGET AVX512
#include "color_functions.h"

}  // namespace

const ColorVariant kColorAvx512 = COLOR_VARIANT;

}  // namespace gpupipe

#endif
