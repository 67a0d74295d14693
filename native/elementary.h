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

// The exponential function, by the polynomial of Cephes' expf (Moshier). What is below the normal
// numbers becomes 0.
ELEMENTARY_INLINE float exp_of(float value) {
  const float low = -87.3f, high = 88.7f;
  const float x = value < low ? low : value > high ? high : value;
  const float shift = 12582912.0f;  // 1.5 * 2^23: floats of that size are integers
  const float exponent = (x * 1.44269504f + shift) - shift;
  const float r = (x - exponent * 0.693359375f) + exponent * 2.12194440e-4f;
  float y = 1.9875691500e-4f;
  y = y * r + 1.3981999507e-3f;
  y = y * r + 8.3334519073e-3f;
  y = y * r + 4.1665795894e-2f;
  y = y * r + 1.6666665459e-1f;
  y = y * r + 5.0000001201e-1f;
  y = y * (r * r) + r + 1.0f;
  // In two factors: 2^128 is no number.
  const int32_t whole = int32_t(exponent), half = whole >> 1;
  const float scaled = y * to_float((half + 127) << 23) * to_float((whole - half + 127) << 23);
  return value < low ? 0.0f : scaled;
}

}  // namespace gpupipe
