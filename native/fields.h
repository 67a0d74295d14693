// Random fields: numbers for each pixel of an image, from the seed of its sample.
//
// Number n of a field is a function of the seed and of n alone. gpupipe/augment/noise.py has the
// same functions in NumPy: both make the same numbers to the bit, and so do all variants. So each
// operation here is one of integers, or a single IEEE operation in float32, in a stated order.
#pragma once

#include "variant.h"

namespace gpupipe {

constexpr int kFieldBlock = 512;  // numbers that are drawn at once; a block of normal numbers

// The key of the numbers of one seed.
struct FieldKey {
  uint32_t first, second;
};

// Mixes a seed by the finaliser of SplitMix64, as sampling/draws.py does.
inline FieldKey make_field_key(int64_t seed) {
  uint64_t x = uint64_t(seed);
  x = (x ^ (x >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
  x = (x ^ (x >> 27)) * UINT64_C(0x94D049BB133111EB);
  x ^= x >> 31;
  return {uint32_t(x), uint32_t(x >> 32)};
}

// The loops over numbers, compiled once for each instruction set.
struct FieldLoops {
  // Draws block `block` of the standard normal numbers of a key: numbers n with n / kFieldBlock ==
  // block.
  void (*draw_normal)(FieldKey key, uint32_t block, float* numbers);

  // Draws `count` uniform numbers in [0, 1) from number `first` on.
  void (*draw_uniform)(FieldKey key, uint32_t first, int64_t count, float* numbers);

  // Adds scale * noise + mean, truncated and clamped to -255..255, to levels, and clamps them to
  // 0..255. `sums` may be `levels`.
  void (*add_to_levels)(const uint8_t* levels, const float* noise, int64_t count, float scale,
                        float mean, uint8_t* sums);

  // Adds scale * noise + mean to numbers. Clamps the sums to 0..1 if `clip` is set. `sums` may be
  // `numbers`.
  void (*add_to_numbers)(const float* numbers, const float* noise, int64_t count, float scale,
                         float mean, bool clip, float* sums);

  // Weighs 2 * half + 1 rows by a symmetric kernel: weights[0] is that of the middle row, and
  // weights[k] that of the rows k above and k below it.
  void (*blur_rows)(const float* const* rows, const float* weights, int half, int64_t count,
                    float* sums);
};

// Returns the loops for the instruction set of a variant.
const FieldLoops& find_field_loops(const Variant& variant);

}  // namespace gpupipe
