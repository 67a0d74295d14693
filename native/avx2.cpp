// The variant for AVX2 and F16C: the warp.
//
// Measured on a Xeon with AVX-512: gather instructions are no faster here than loads of 8 bytes,
// and on processors with the fix for CVE-2022-40982 they are far slower.
#if defined(__x86_64__)

#include "avx2.h"

#include <algorithm>

namespace gpupipe {
namespace {

bool is_supported() {
  __builtin_cpu_init();
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
         __builtin_cpu_supports("f16c");
}

// The first and second four bytes of each of 8 places: R0 G0 B0 R1, and G1 B1 and two more.
struct Pair {
  __m256i low, high;
};

AVX2_INLINE __m128i load_two(const uint8_t* a, const uint8_t* b) {
  const __m128i first = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(a));
  return _mm_castps_si128(
      _mm_loadh_pi(_mm_castsi128_ps(first), reinterpret_cast<const __m64*>(b)));
}

AVX2_INLINE Pair load_pair(const uint8_t* pixels, const int32_t* at) {
  const __m256i even = _mm256_inserti128_si256(
      _mm256_castsi128_si256(load_two(pixels + at[0], pixels + at[1])),
      load_two(pixels + at[4], pixels + at[5]), 1);
  const __m256i odd = _mm256_inserti128_si256(
      _mm256_castsi128_si256(load_two(pixels + at[2], pixels + at[3])),
      load_two(pixels + at[6], pixels + at[7]), 1);
  const __m256 a = _mm256_castsi256_ps(even), b = _mm256_castsi256_ps(odd);
  // 0x88 takes the lower dword of each 8 bytes, 0xdd the upper one.
  return {_mm256_castps_si256(_mm256_shuffle_ps(a, b, 0x88)),
          _mm256_castps_si256(_mm256_shuffle_ps(a, b, 0xdd))};
}

// A shuffle that puts byte `left` of each dword into its lower half, and `right` into its upper;
// -128 puts a 0.
AVX2_INLINE __m256i halves(int left, int right) {
  const int m = -128;
  const char l0 = char(left), r0 = char(right);
  auto at = [](char byte, int dword) { return char(byte < 0 ? byte : byte + 4 * dword); };
  const __m128i one = _mm_setr_epi8(
      at(l0, 0), char(m), at(r0, 0), char(m), at(l0, 1), char(m), at(r0, 1), char(m), at(l0, 2),
      char(m), at(r0, 2), char(m), at(l0, 3), char(m), at(r0, 3), char(m));
  return _mm256_broadcastsi128_si256(one);
}

// Weighs the two pixels of a row: the pairs of 16-bit levels of each channel.
AVX2_INLINE __m256i weigh_red(const Pair& p, __m256i wx) {
  return _mm256_madd_epi16(_mm256_shuffle_epi8(p.low, halves(0, 3)), wx);
}

AVX2_INLINE __m256i weigh_green(const Pair& p, __m256i wx) {
  const __m256i left = _mm256_shuffle_epi8(p.low, halves(1, -128));
  const __m256i right = _mm256_shuffle_epi8(p.high, halves(-128, 0));
  return _mm256_madd_epi16(_mm256_or_si256(left, right), wx);
}

AVX2_INLINE __m256i weigh_blue(const Pair& p, __m256i wx) {
  const __m256i left = _mm256_shuffle_epi8(p.low, halves(2, -128));
  const __m256i right = _mm256_shuffle_epi8(p.high, halves(-128, 1));
  return _mm256_madd_epi16(_mm256_or_si256(left, right), wx);
}

// Weighs two rows, rounds to levels, and stores 8 of them.
AVX2_INLINE void store_levels(__m256i above, __m256i below, __m256i wy, uint8_t* levels) {
  const int shift = kWeightBits - kHalfBits;
  const __m256i round = _mm256_set1_epi32(1 << (shift - 1));
  above = _mm256_srli_epi32(_mm256_add_epi32(above, round), shift);
  below = _mm256_slli_epi32(_mm256_add_epi32(below, round), 16 - shift);
  // 0xaa: the upper word of each dword is `below`, the lower one `above`.
  const __m256i sum = _mm256_madd_epi16(_mm256_blend_epi16(above, below, 0xaa), wy);
  const __m256i odd =
      _mm256_and_si256(_mm256_srli_epi32(sum, kSumBits), _mm256_set1_epi32(1));
  const __m256i half = _mm256_set1_epi32((1 << (kSumBits - 1)) - 1);
  const __m256i level =
      _mm256_srli_epi32(_mm256_add_epi32(sum, _mm256_add_epi32(odd, half)), kSumBits);
  const __m128i words = _mm_packus_epi32(_mm256_castsi256_si128(level),
                                         _mm256_extracti128_si256(level, 1));
  _mm_storel_epi64(reinterpret_cast<__m128i*>(levels), _mm_packus_epi16(words, words));
}

// Returns the weights (1 - w, w) of the fractions of coordinates, as pairs of 16 bits.
AVX2_INLINE __m256i weights(__m256i at) {
  const __m256i w = _mm256_srli_epi32(
      _mm256_and_si256(at, _mm256_set1_epi32((1 << kFractionBits) - 1)),
      kFractionBits - kWeightBits);
  const __m256i rest = _mm256_sub_epi32(_mm256_set1_epi32(kWeightOne), w);
  return _mm256_or_si256(rest, _mm256_slli_epi32(w, 16));
}

// A bit for each lane with at <= max, both without sign.
AVX2_INLINE __m256i is_at_most(__m256i at, __m256i max) {
  return _mm256_cmpeq_epi32(_mm256_min_epu32(at, max), at);
}

AVX2_INLINE unsigned to_bits(__m256i lanes) {
  return unsigned(_mm256_movemask_ps(_mm256_castsi256_ps(lanes)));
}

struct Vectors {
  __m256i dx, dy, max_x, max_y, width, height, stride, max_offset;
};

// Warps 8 pixels whose coordinates fit 32 bits.
AVX2_INLINE void warp_8(const Warp& warp, const Vectors& v, int64_t x0, int64_t y0, int column,
                        uint8_t* const planes[kChannels]) {
  const __m256i x = _mm256_add_epi32(_mm256_set1_epi32(int32_t(x0)), v.dx);
  const __m256i y = _mm256_add_epi32(_mm256_set1_epi32(int32_t(y0)), v.dy);
  __m256i left = _mm256_srai_epi32(x, kFractionBits);
  __m256i top = _mm256_srai_epi32(y, kFractionBits);
  __m256i is_inside = _mm256_and_si256(is_at_most(left, v.max_x), is_at_most(top, v.max_y));
  if (!to_bits(is_inside)) {
    const __m256i one = _mm256_set1_epi32(1);
    const __m256i is_near = _mm256_and_si256(is_at_most(_mm256_add_epi32(left, one), v.width),
                                             is_at_most(_mm256_add_epi32(top, one), v.height));
    if (to_bits(is_near)) {
      warp_block(warp, x0, y0, column, kBlock, planes);
    } else {
      for (int c = 0; c < kChannels; ++c) std::memset(planes[c] + column, warp.filled[c], kBlock);
    }
    return;
  }
  const __m256i zero = _mm256_setzero_si256();
  left = _mm256_min_epi32(_mm256_max_epi32(left, zero), v.max_x);
  top = _mm256_min_epi32(_mm256_max_epi32(top, zero), v.max_y);
  const __m256i offset = _mm256_add_epi32(_mm256_mullo_epi32(top, v.stride),
                                          _mm256_add_epi32(left, _mm256_slli_epi32(left, 1)));
  // The last pixel: 8 bytes from there would end after the image.
  is_inside = _mm256_and_si256(is_inside, is_at_most(offset, v.max_offset));
  alignas(32) int32_t at[kBlock];
  _mm256_store_si256(reinterpret_cast<__m256i*>(at), _mm256_min_epi32(offset, v.max_offset));
  const Pair above = load_pair(warp.source.pixels, at);
  const Pair below = load_pair(warp.source.pixels + warp.source.stride, at);
  const __m256i wx = weights(x), wy = weights(y);
  store_levels(weigh_red(above, wx), weigh_red(below, wx), wy, planes[0] + column);
  store_levels(weigh_green(above, wx), weigh_green(below, wx), wy, planes[1] + column);
  store_levels(weigh_blue(above, wx), weigh_blue(below, wx), wy, planes[2] + column);
  for (unsigned rest = ~to_bits(is_inside) & 0xff; rest; rest &= rest - 1) {
    const int n = __builtin_ctz(rest);
    warp_pixel(warp, x0 + warp.dx[n], y0 + warp.dy[n], column + n, planes);
  }
}

// Whether the coordinates of a block fit 32 bits, with room for a round.
inline bool is_small(int64_t first, const int64_t* steps) {
  const int64_t max = INT64_C(1) << 30;
  const int64_t last = first + steps[kBlock - 1];
  return -max < first && first < max && -max < last && last < max;
}

}  // namespace

namespace avx2 {

AVX2 void warp_row(const Warp& warp, int row, int width, uint8_t* const planes[kChannels]) {
  const Image& s = warp.source;
  const int64_t max_offset = s.size() - s.stride - 8;  // of 8 bytes, with the row below
  if (s.width < 2 || s.height < 2 || max_offset < 0 || s.size() > INT32_MAX) {
    kScalar.warp_row(warp, row, width, planes);
    return;
  }
  alignas(32) int32_t dx[kBlock], dy[kBlock];
  for (int n = 0; n < kBlock; ++n) dx[n] = int32_t(warp.dx[n]), dy[n] = int32_t(warp.dy[n]);
  const Vectors v = {_mm256_load_si256(reinterpret_cast<const __m256i*>(dx)),
                     _mm256_load_si256(reinterpret_cast<const __m256i*>(dy)),
                     _mm256_set1_epi32(s.width - 2),
                     _mm256_set1_epi32(s.height - 2),
                     _mm256_set1_epi32(s.width),
                     _mm256_set1_epi32(s.height),
                     _mm256_set1_epi32(int32_t(s.stride)),
                     _mm256_set1_epi32(int32_t(max_offset))};
  for (int column = 0; column < width; column += kBlock) {
    int64_t x, y;
    locate_block(warp, row, column, &x, &y);
    if (is_small(x, warp.dx) && is_small(y, warp.dy)) {
      warp_8(warp, v, x, y, column, planes);
    } else {
      warp_block(warp, x, y, column, kBlock, planes);
    }
  }
}

}  // namespace avx2

const Variant kAvx2 = {"avx2",
                       is_supported,
                       avx2::warp_row,
                       avx2::split,
                       avx2::merge,
                       avx2::convert,
                       avx2::prepare_columns,
                       avx2::resize_columns,
                       avx2::blend_rows,
                       &kColorAvx2};

}  // namespace gpupipe

#endif
