// The functions for images of float32 for AVX2.
#if defined(__x86_64__)

#include "avx2.h"
#include "float_colors.h"

namespace gpupipe {
namespace {

#define FLOAT_TARGET AVX2
#include "float_functions.h"

}  // namespace

const FloatVariant kFloatAvx2 = FLOAT_VARIANT;

}  // namespace gpupipe

#endif
