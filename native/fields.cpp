// The loops of fields.h for each instruction set, and what they share.
#include "fields.h"

#include <cmath>
#include <cstring>

#include "elementary.h"

#define SHARED inline __attribute__((always_inline))

namespace gpupipe {
namespace {

constexpr float kEighthTurn = 0.78539816339744831f * 1.1920928955078125e-7f;  // pi / 4 / 2**23

// Hashes number n of a field: triple32 of the Hash Prospector (Wellons 2018), with the key.
SHARED uint32_t hash_number(uint32_t n, FieldKey key) {
  uint32_t x = n + key.first;
  x = (x ^ (x >> 17)) * 0xed5ad4bbu;
  x = (x ^ (x >> 11)) * 0xac4c1b51u;
  x ^= key.second;
  x = (x ^ (x >> 15)) * 0x31848babu;
  return x ^ (x >> 14);
}

// Returns a number between 0 and 1, both excluded.
SHARED float to_fraction(uint32_t hash) {
  return (float(int32_t(hash >> 9)) + 0.5f) * 1.1920928955078125e-7f;  // 2**-23
}

// Returns cosine with the highest bit of `hash` as its sign.
SHARED float with_sign(float cosine, uint32_t hash) {
  return to_float(to_bits(cosine) ^ int32_t(hash & 0x80000000u));
}

// Returns `yes` if all bits of the mask are set, and `no` if none is.
SHARED float select(int32_t mask, float yes, float no) {
  return to_float((to_bits(yes) & mask) | (to_bits(no) & ~mask));
}

// Sine and cosine of an angle of at most pi / 4, by the polynomials of Cephes' sinf and cosf;
// z is the square of the angle.
SHARED float sine_of(float angle, float z) {
  return ((-1.9515295891e-4f * z + 8.3321608736e-3f) * z - 1.6666654611e-1f) * z * angle + angle;
}

SHARED float cosine_of(float z) {
  const float y = (2.443315711809948e-5f * z - 1.388731625493765e-3f) * z + 4.166664568298827e-2f;
  return y * z * z - 0.5f * z + 1.0f;
}

}  // namespace
}  // namespace gpupipe

#define LOOPS any
#define LOOPS_TARGET
#define LOOPS_BYTES 16
#include "field_loops.h"

#if defined(__x86_64__)
#define LOOPS avx2
#define LOOPS_TARGET __attribute__((target("avx2")))
#define LOOPS_BYTES 32
#include "field_loops.h"

#define LOOPS avx512
#define LOOPS_TARGET __attribute__((target("avx512f,avx512bw,avx512vl")))
#define LOOPS_BYTES 64
#include "field_loops.h"
#endif

namespace gpupipe {

const FieldLoops& find_field_loops(const Variant& variant) {
#if defined(__x86_64__)
  if (&variant == &kAvx512) return avx512::kFieldLoops;
  if (&variant == &kAvx2) return avx2::kFieldLoops;
#endif
  (void)variant;
  return any::kFieldLoops;
}

}  // namespace gpupipe
