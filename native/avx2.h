// The functions of the variant for AVX2, which that for AVX-512 uses too.
#pragma once

#if defined(__x86_64__)

#include <immintrin.h>

#include "rows.h"

#define AVX2 __attribute__((target("avx2,fma,f16c")))
#define AVX2_INLINE AVX2 __attribute__((always_inline)) inline

namespace gpupipe::avx2 {

void warp_row(const Warp& warp, int row, int width, uint8_t* const planes[]);
void stream(const float* from, float* to, int64_t count);
void split(const uint8_t* pixels, uint8_t* const planes[kChannels], int width, bool is_reversed);
void merge(const uint8_t* const planes[kChannels], uint8_t* pixels, int width);
void reverse(const uint8_t* pixels, uint8_t* to, int width);
void transpose(const uint8_t* pixels, int64_t stride, uint8_t* to, int64_t to_stride, int rows,
               int columns);
void convert(const uint8_t* levels, uint8_t* values, int64_t count, const Conversion& k);
void prepare_columns(Columns& columns);
void resize_columns(const Columns& columns, const uint8_t* a, const uint8_t* b, uint16_t* pairs);
void blend_rows(const uint16_t* const rows[], const int16_t* weights, int count, int precision,
                int size, uint8_t* levels);

}  // namespace gpupipe::avx2

#endif
