// What the parts of the variant for AVX-512 share.
#pragma once

#if defined(__x86_64__)

// The headers of GCC 12 warn of their own variables.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif

#include "avx2.h"

#define AVX512 \
  __attribute__((target("avx512f,avx512bw,avx512vl,avx512vbmi,avx512vnni,avx2,fma,f16c")))
#define AVX512_INLINE AVX512 __attribute__((always_inline)) inline

namespace gpupipe::avx512 {

constexpr int kVector = 64;  // bytes

// Returns a mask of the first `count` of 64 bytes; none if it is negative.
AVX512_INLINE __mmask64 mask_of(int64_t count) {
  return count >= kVector ? ~__mmask64{0} : count <= 0 ? 0 : (__mmask64{1} << count) - 1;
}

void warp_row(const Warp& warp, int row, int width, uint8_t* const planes[]);
void split(const uint8_t* pixels, uint8_t* const planes[kChannels], int width, bool is_reversed);
void merge(const uint8_t* const planes[], uint8_t* pixels, int width);
void convert(const uint8_t* levels, uint8_t* values, int64_t count, const Conversion& k);

}  // namespace gpupipe::avx512

#endif
