// The functions for images of float32 for every processor.
#include "float_colors.h"

namespace gpupipe {
namespace {

void stream(const float* from, float* to, int64_t count) {
  std::memcpy(to, from, size_t(count) * sizeof(float));
}

#define FLOAT_TARGET
#include "float_functions.h"

}  // namespace

const FloatVariant kFloatBase = FLOAT_VARIANT;

}  // namespace gpupipe
