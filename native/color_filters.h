// Filters of neighbouring pixels: sharpness and blur.
#pragma once

#include "arena.h"
#include "color_variant.h"

namespace gpupipe {

// Blends an image of uint8 or float32 with a smoothed one. The border of one pixel stays as it is.
void sharpen(double factor, const ColorVariant& variant, Image* image, Arena& arena);

// Blurs an image of uint8 or float32, mirrored at its border, with a kernel [width, height] and a
// sigma of each axis. Returns false if the image is not larger than half of the kernel.
bool blur(const int size[2], const double sigma[2], const ColorVariant& variant, Image* image,
          Arena& arena);

}  // namespace gpupipe
