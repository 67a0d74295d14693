// Swaps rows and columns of pixels of RGB for AVX2.
#if defined(__x86_64__)

#include "avx2.h"

namespace gpupipe::avx2 {

AVX2 void transpose(const uint8_t* pixels, int64_t stride, uint8_t* to, int64_t to_stride, int rows,
                    int columns) {
  const __m128i widen = _mm_setr_epi8(0, 1, 2, -1, 3, 4, 5, -1, 6, 7, 8, -1, 9, 10, 11, -1);
  const __m128i narrow = _mm_setr_epi8(0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, -1, -1, -1, -1);
  for (int x = 0; x < columns; x += kSideBlock)
    for (int y = 0; y < rows; y += kSideBlock) {
      __m128i four[kSideBlock];  // pixels of a row, in four bytes each
      for (int k = 0; k < kSideBlock; ++k) {
        const uint8_t* const from = pixels + (y + k) * stride + kChannels * x;
        four[k] = _mm_shuffle_epi8(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)), widen);
      }
      const __m128i left_top = _mm_unpacklo_epi32(four[0], four[1]);
      const __m128i right_top = _mm_unpackhi_epi32(four[0], four[1]);
      const __m128i left_bottom = _mm_unpacklo_epi32(four[2], four[3]);
      const __m128i right_bottom = _mm_unpackhi_epi32(four[2], four[3]);
      const __m128i turned[kSideBlock] = {_mm_unpacklo_epi64(left_top, left_bottom),
                                          _mm_unpackhi_epi64(left_top, left_bottom),
                                          _mm_unpacklo_epi64(right_top, right_bottom),
                                          _mm_unpackhi_epi64(right_top, right_bottom)};
      for (int k = 0; k < kSideBlock; ++k) {
        const __m128i row = _mm_shuffle_epi8(turned[k], narrow);
        uint8_t* const at = to + (x + k) * to_stride + kChannels * y;
        const int32_t last = _mm_extract_epi32(row, 2);
        _mm_storel_epi64(reinterpret_cast<__m128i*>(at), row);
        std::memcpy(at + 8, &last, sizeof last);
      }
    }
}

}  // namespace gpupipe::avx2

#endif
