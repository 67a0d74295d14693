// The variant for AVX2 and F16C: the warp.
//
// Measured on a Xeon with AVX-512: gather instructions are no faster here than loads of 8 bytes,
// and on processors with the fix for CVE-2022-40982 they are far slower.
#if defined(__x86_64__)

#include "avx2.h"

#include <algorithm>

#include "cpu_features.h"

namespace gpupipe {
namespace {

bool is_supported() {
  return has_bits(kAvxBits) && has_bits(kAvx2Bits) && keeps_registers(kAvxRegisters);
}

// The first and second four bytes of each of 8 places: of RGB, R0 G0 B0 R1, and G1 B1 and two more.
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

// Weighs the two pixels of a row: the pairs of 16-bit levels of a channel.
template <int kCount, int kChannel>
AVX2_INLINE __m256i weigh(const Pair& p, __m256i wx) {
  constexpr int kLeft = kChannel, kRight = kChannel + kCount;  // bytes of the 8
  if (kRight < 4)
    return _mm256_madd_epi16(_mm256_shuffle_epi8(p.low, halves(kLeft, kRight)), wx);
  const __m256i left = _mm256_shuffle_epi8(p.low, halves(kLeft, -128));
  const __m256i right = _mm256_shuffle_epi8(p.high, halves(-128, kRight - 4));
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

// Warps those of 8 pixels one by one whose bit is set.
AVX2_INLINE void warp_each(const Warp& warp, __m256i x, __m256i y, unsigned lanes, int column,
                           uint8_t* const planes[]) {
  alignas(32) int32_t xs[kBlock], ys[kBlock];
  _mm256_store_si256(reinterpret_cast<__m256i*>(xs), x);
  _mm256_store_si256(reinterpret_cast<__m256i*>(ys), y);
  for (; lanes; lanes &= lanes - 1) {
    const int n = __builtin_ctz(lanes);
    warp_pixel(warp, xs[n], ys[n], column + n, planes);
  }
}

template <int kCount, int kChannel>
AVX2_INLINE void warp_channel(const Pair& above, const Pair& below, __m256i wx, __m256i wy,
                              int column, uint8_t* const planes[]) {
  if constexpr (kChannel < kCount)
    store_levels(weigh<kCount, kChannel>(above, wx), weigh<kCount, kChannel>(below, wx), wy,
                 planes[kChannel] + column);
}

// Warps 8 pixels whose coordinates fit 32 bits.
template <int kCount>
AVX2_INLINE void warp_8(const Warp& warp, const Vectors& v, __m256i x, __m256i y, int column,
                        uint8_t* const planes[]) {
  __m256i left = _mm256_srai_epi32(x, kFractionBits);
  __m256i top = _mm256_srai_epi32(y, kFractionBits);
  __m256i is_inside = _mm256_and_si256(is_at_most(left, v.max_x), is_at_most(top, v.max_y));
  if (!to_bits(is_inside)) {
    const __m256i one = _mm256_set1_epi32(1);
    const __m256i is_near = _mm256_and_si256(is_at_most(_mm256_add_epi32(left, one), v.width),
                                             is_at_most(_mm256_add_epi32(top, one), v.height));
    if (to_bits(is_near)) {
      warp_each(warp, x, y, 0xff, column, planes);
    } else {
      for (int c = 0; c < kCount; ++c) std::memset(planes[c] + column, warp.filled[c], kBlock);
    }
    return;
  }
  const __m256i zero = _mm256_setzero_si256();
  left = _mm256_min_epi32(_mm256_max_epi32(left, zero), v.max_x);
  top = _mm256_min_epi32(_mm256_max_epi32(top, zero), v.max_y);
  const __m256i offset =
      _mm256_add_epi32(_mm256_mullo_epi32(top, v.stride),
                       _mm256_mullo_epi32(left, _mm256_set1_epi32(kCount)));
  // The last pixels: 8 bytes from there would end after the image.
  is_inside = _mm256_and_si256(is_inside, is_at_most(offset, v.max_offset));
  alignas(32) int32_t at[kBlock];
  _mm256_store_si256(reinterpret_cast<__m256i*>(at), _mm256_min_epi32(offset, v.max_offset));
  const Pair above = load_pair(warp.source.pixels, at);
  const Pair below = load_pair(warp.source.pixels + warp.source.stride, at);
  const __m256i wx = weights(x), wy = weights(y);
  warp_channel<kCount, 0>(above, below, wx, wy, column, planes);
  warp_channel<kCount, 1>(above, below, wx, wy, column, planes);
  warp_channel<kCount, 2>(above, below, wx, wy, column, planes);
  warp_channel<kCount, 3>(above, below, wx, wy, column, planes);
  const unsigned rest = ~to_bits(is_inside) & 0xff;
  if (rest) warp_each(warp, x, y, rest, column, planes);
}

// Whether the coordinates of a block fit 32 bits, with room for a round.
inline bool is_small(int64_t first, const int64_t* steps) {
  const int64_t max = INT64_C(1) << 30;
  const int64_t last = first + steps[kBlock - 1];
  return -max < first && first < max && -max < last && last < max;
}

// The coordinates of 4 pixels of a warp of perspective: those of locate_pixel to the bit.
AVX2_INLINE __m128i locate_four(const double* m, __m256d column, __m256d row, __m256d w) {
  const __m256d at = _mm256_add_pd(_mm256_mul_pd(_mm256_set1_pd(m[0]), column), row);
  const __m256d max = _mm256_set1_pd(kMaxPerspective), min = _mm256_set1_pd(-kMaxPerspective);
  // Of a NaN and a number, the second is taken: a NaN is outside.
  const __m256d inside = _mm256_min_pd(_mm256_max_pd(_mm256_div_pd(at, w), min), max);
  return _mm256_cvtpd_epi32(_mm256_mul_pd(inside, _mm256_set1_pd(1 << kFractionBits)));
}

// The coordinates of 8 pixels.
AVX2_INLINE void locate_8(const Warp& warp, int row, int column, __m256i* x, __m256i* y) {
  const double* m = warp.matrix;
  __m128i xs[2], ys[2];
  for (int k = 0; k < 2; ++k) {
    const __m256d at = _mm256_add_pd(_mm256_set1_pd(column + 4 * k), _mm256_setr_pd(0, 1, 2, 3));
    const __m256d w = _mm256_add_pd(_mm256_mul_pd(_mm256_set1_pd(m[6]), at),
                                    _mm256_set1_pd(m[7] * row + m[8]));
    xs[k] = locate_four(m, at, _mm256_set1_pd(m[1] * row + m[2]), w);
    ys[k] = locate_four(m + 3, at, _mm256_set1_pd(m[4] * row + m[5]), w);
  }
  const __m256i round = _mm256_set1_epi32(kRoundWeight);
  *x = _mm256_add_epi32(_mm256_set_m128i(xs[1], xs[0]), round);
  *y = _mm256_add_epi32(_mm256_set_m128i(ys[1], ys[0]), round);
}

template <int kCount>
AVX2_INLINE void warp_blocks(const Warp& warp, const Vectors& v, int row, int width,
                             uint8_t* const planes[]) {
  for (int column = 0; column < width; column += kBlock) {
    if (warp.is_perspective) {
      __m256i xs, ys;
      locate_8(warp, row, column, &xs, &ys);
      warp_8<kCount>(warp, v, xs, ys, column, planes);
      continue;
    }
    int64_t x, y;
    locate_block(warp, row, column, &x, &y);
    if (is_small(x, warp.dx) && is_small(y, warp.dy)) {
      warp_8<kCount>(warp, v, _mm256_add_epi32(_mm256_set1_epi32(int32_t(x)), v.dx),
                     _mm256_add_epi32(_mm256_set1_epi32(int32_t(y)), v.dy), column, planes);
    } else {
      warp_block(warp, x, y, column, kBlock, planes);
    }
  }
}

}  // namespace

namespace avx2 {

AVX2 void warp_row(const Warp& warp, int row, int width, uint8_t* const planes[]) {
  const Image& s = warp.source;
  const int64_t max_offset = s.size() - s.stride - 8;  // of 8 bytes, with the row below
  const bool is_far = warp.is_perspective && std::max(s.width, s.height) >= kMaxPerspective;
  if (s.width < 2 || s.height < 2 || max_offset < 0 || s.size() > INT32_MAX || is_far) {
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
  if (s.channels == 1) warp_blocks<1>(warp, v, row, width, planes);
  if (s.channels == 2) warp_blocks<2>(warp, v, row, width, planes);
  if (s.channels == 3) warp_blocks<3>(warp, v, row, width, planes);
  if (s.channels == 4) warp_blocks<4>(warp, v, row, width, planes);
}

}  // namespace avx2

const Variant kAvx2 = {"avx2",
                       is_supported,
                       avx2::warp_row,
                       avx2::split,
                       avx2::merge,
                       avx2::reverse,
                       avx2::transpose,
                       avx2::convert,
                       avx2::prepare_columns,
                       avx2::resize_columns,
                       avx2::blend_rows,
                       &kColorAvx2,
                       &kFloatAvx2};

}  // namespace gpupipe

#endif
