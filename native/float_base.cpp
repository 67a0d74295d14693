// The functions for images of float32 for every processor.
#include "float_colors.h"

namespace gpupipe {
namespace {

#define FLOAT_TARGET
#include "float_functions.h"

}  // namespace

const FloatVariant kFloatBase = FLOAT_VARIANT;

}  // namespace gpupipe
