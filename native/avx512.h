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

void warp_row(const Warp& warp, int row, int width, uint8_t* const planes[]);
void merge(const uint8_t* const planes[], uint8_t* pixels, int width);

}  // namespace gpupipe::avx512

#endif
