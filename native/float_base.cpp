// The functions for images of float32 for every processor.
#include "float_parts.h"

namespace gpupipe {
namespace {

void stream(const float* from, float* to, int64_t count) {
  std::memcpy(to, from, size_t(count) * sizeof(float));
}

struct Few {
  static void stream(const float* from, float* to) {
    std::memcpy(to, from, floats::kFew * sizeof(float));
  }

  template <int kCount>
  static int warp(const Image&, const floats::Points&, int, float*) {
    return 0;
  }
};

#define FLOAT_TARGET
#include "float_functions.h"

}  // namespace

const FloatVariant kFloatBase = FLOAT_VARIANT;

}  // namespace gpupipe
