// The functions for images of float32 for AVX2.
#if defined(__x86_64__)

#include "avx2.h"
#include "float_colors.h"

namespace gpupipe {
namespace avx2 {

AVX2 void stream(const float* from, float* to, int64_t count) {
  constexpr int kLine = 16;  // floats in a cache line
  const int64_t head = -(reinterpret_cast<uintptr_t>(to) / sizeof(float)) % kLine;
  const int64_t end = count - (count - head) % kLine;
  if (count < 2 * kLine) {
    std::memcpy(to, from, size_t(count) * sizeof(float));
    return;
  }
  std::memcpy(to, from, size_t(head) * sizeof(float));
  for (int64_t n = head; n < end; n += 8) _mm256_stream_ps(to + n, _mm256_loadu_ps(from + n));
  std::memcpy(to + end, from + end, size_t(count - end) * sizeof(float));
}

}  // namespace avx2

namespace {

using avx2::stream;

#define FLOAT_TARGET AVX2
#include "float_functions.h"

}  // namespace

const FloatVariant kFloatAvx2 = FLOAT_VARIANT;

}  // namespace gpupipe

#endif
