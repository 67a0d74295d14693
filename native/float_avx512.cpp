// The functions for images of float32 for AVX-512.
#if defined(__x86_64__)

#include "avx512.h"
#include "float_colors.h"

namespace gpupipe {
namespace {

using avx2::stream;

#define FLOAT_TARGET AVX512
#include "float_functions.h"

}  // namespace

const FloatVariant kFloatAvx512 = FLOAT_VARIANT;

}  // namespace gpupipe

#endif
