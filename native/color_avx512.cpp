// The functions of colours for AVX-512 with VBMI: whole tables in four registers.
#if defined(__x86_64__)

#include "avx512.h"
#include "filter_rows.h"

namespace gpupipe {
namespace {

constexpr int kVector = 64;  // bytes

// Returns a mask of the first `count` of 64 bytes; none if it is negative.
AVX512_INLINE __mmask64 mask_of(int64_t count) {
  return count >= kVector ? ~__mmask64{0} : count <= 0 ? 0 : (__mmask64{1} << count) - 1;
}

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

// The shuffles between 64 interleaved pixels, which are three vectors, and three planes.
struct Shuffles {
  alignas(kVector) uint8_t split[kChannels][kVector];  // the byte of all three vectors, modulo 128
  alignas(kVector) uint8_t merge[3][kVector];          // the pixel, and 64 for the second plane
  uint64_t is_last_vector[kChannels] = {}, is_last_plane[3] = {};

  Shuffles() {
    for (int n = 0; n < kVector; ++n) {
      for (int c = 0; c < kChannels; ++c) {
        const int byte = kChannels * n + c, own = c * kVector + n;
        split[c][n] = uint8_t(byte % (2 * kVector));
        is_last_vector[c] |= uint64_t{byte >= 2 * kVector} << n;
        const int plane = own % kChannels;
        merge[c][n] = uint8_t(own / kChannels + (plane == 1 ? kVector : 0));
        is_last_plane[c] |= uint64_t{plane == 2} << n;
      }
    }
  }
};

const Shuffles kShuffles;

// Takes bytes from a and b, or from c where the mask says so.
AVX512_INLINE __m512i shuffle_three(const __m512i v[3], const uint8_t* how, uint64_t is_last) {
  const __m512i order = _mm512_load_si512(how);
  return _mm512_mask_permutexvar_epi8(_mm512_permutex2var_epi8(v[0], order, v[1]), is_last, order,
                                      v[2]);
}

AVX512 void split(const uint8_t* pixels, uint8_t* const planes[], int count) {
  for (int n = 0; n < count; n += kVector) {
    const int64_t bytes = int64_t{count - n} * kChannels;
    __m512i v[3];
    for (int k = 0; k < 3; ++k)
      v[k] = _mm512_maskz_loadu_epi8(mask_of(bytes - k * kVector),
                                     pixels + n * kChannels + k * kVector);
    const __mmask64 mask = mask_of(count - n);
    for (int c = 0; c < kChannels; ++c)
      _mm512_mask_storeu_epi8(
          planes[c] + n, mask,
          shuffle_three(v, kShuffles.split[c], kShuffles.is_last_vector[c]));
  }
}

}  // namespace

AVX512 void avx512::merge(const uint8_t* const planes[], uint8_t* pixels, int count) {
  for (int n = 0; n < count; n += kVector) {
    const int64_t bytes = int64_t{count - n} * kChannels;
    const __mmask64 mask = mask_of(count - n);
    __m512i v[3];
    for (int c = 0; c < kChannels; ++c) v[c] = _mm512_maskz_loadu_epi8(mask, planes[c] + n);
    for (int k = 0; k < 3; ++k)
      _mm512_mask_storeu_epi8(
          pixels + n * kChannels + k * kVector, mask_of(bytes - k * kVector),
          shuffle_three(v, kShuffles.merge[k], kShuffles.is_last_plane[k]));
  }
}

namespace {

using avx512::merge;

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

AVX512 uint32_t sum_luma(const uint8_t* pixels, int count) {
  const __m512i order = _mm512_load_si512(kLumaDigits.order);
  const __m512i low = _mm512_set1_epi32(kLumaDigits.digits[0]);
  const __m512i middle = _mm512_set1_epi32(kLumaDigits.digits[1]);
  const __m512i high = _mm512_set1_epi32(kLumaDigits.digits[2]);
  const __m512i round = _mm512_set1_epi32(int(kLumaRound)), zero = _mm512_setzero_si512();
  __m512i sum = zero;
  const int64_t bytes = int64_t{count} * kChannels, step = kVector / 4 * kChannels;
  for (int64_t n = 0; n < bytes; n += step) {
    // Zeros after the last pixel have no luma.
    const __m512i loaded = n + kVector <= bytes
                               ? _mm512_loadu_si512(pixels + n)
                               : _mm512_maskz_loadu_epi8(mask_of(bytes - n), pixels + n);
    const __m512i levels = _mm512_maskz_permutexvar_epi8(0x7777777777777777, order, loaded);
    const __m512i top = _mm512_slli_epi32(_mm512_dpbusd_epi32(zero, levels, high), 8);
    const __m512i upper = _mm512_slli_epi32(_mm512_dpbusd_epi32(top, levels, middle), 8);
    const __m512i luma = _mm512_add_epi32(upper, _mm512_dpbusd_epi32(round, levels, low));
    sum = _mm512_add_epi32(sum, _mm512_srli_epi32(luma, kLumaBits));
  }
  return uint32_t(_mm512_reduce_add_epi32(sum));
}

#define COLOR_TARGET AVX512
#include "color_functions.h"

}  // namespace

const ColorVariant kColorAvx512 = COLOR_VARIANT;

}  // namespace gpupipe

#endif
