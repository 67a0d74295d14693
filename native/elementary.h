// Elementary functions of float32, in single IEEE operations, so that all variants and NumPy give
// the same numbers to the bit.
#pragma once

#include <cstdint>
#include <cstring>

#define ELEMENTARY_INLINE __attribute__((always_inline)) inline

namespace gpupipe {

ELEMENTARY_INLINE int32_t to_bits(float value) {
  int32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

ELEMENTARY_INLINE float to_float(int32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

// The natural logarithm of a positive number, by the polynomial of Cephes' logf (Moshier).
ELEMENTARY_INLINE float log_of(float value) {
  const int32_t kRootHalf = 0x3f3504f3;  // the bits of sqrt(0.5)
  const int32_t bits = to_bits(value) - kRootHalf;
  const float exponent = float(bits >> 23);
  const float x = to_float((bits & 0x7fffff) + kRootHalf) - 1.0f;
  float y = 7.0376836292e-2f;
  y = y * x - 1.1514610310e-1f;
  y = y * x + 1.1676998740e-1f;
  y = y * x - 1.2420140846e-1f;
  y = y * x + 1.4249322787e-1f;
  y = y * x - 1.6668057665e-1f;
  y = y * x + 2.0000714765e-1f;
  y = y * x - 2.4999993993e-1f;
  y = y * x + 3.3333331174e-1f;
  const float square = x * x;
  y = y * x * square - 0.5f * square + x;
  return exponent * 0.69314718f + y;
}

}  // namespace gpupipe
