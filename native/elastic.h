// Moves each pixel by a smooth random displacement, as torchvision's ElasticTransform.
#pragma once

#include <cmath>

#include "arena.h"
#include "fields.h"

namespace gpupipe {

// How displacements are drawn. Index 0 is along x, and 1 along y.
struct Elastic {
  float alpha[2];           // the strength in half pixels
  const float* kernels[2];  // of the blur of a displacement: (2, half + 1), along x and along y,
  int half[2];              // each symmetric, from its middle on
};

// The displacements of an image, row by row. Both sides of the image must be above both `half`.
class Displacements {
 public:
  Displacements(const FieldLoops& loops, const Elastic& elastic, int64_t seed, int height,
                int width, Arena& arena);

  static bool can_blur(const Elastic& elastic, int height, int width) {
    const int half = elastic.half[0] > elastic.half[1] ? elastic.half[0] : elastic.half[1];
    return height > half && width > half;
  }

  // Writes the displacements of a row along x (axis 0) or y, in units of half the width or height.
  void fill_row(int axis, int row, float* numbers) const;

 private:
  void draw_plane(int axis, FieldKey key, Arena& arena);

  const FieldLoops& loops_;
  const Elastic& elastic_;
  const int height_, width_;
  float* planes_[2];     // blurred along x
  const float** rows_;   // of a blur
};

// How an image is moved.
struct Remap {
  bool is_bilinear;  // else nearest
  float fill[4];     // the value outside of the image, by channel
};

// Moves the pixels of an image of uint8 or float32, with 1 to 4 channels, as functional.elastic
// does.
void remap(const Image& image, const Displacements& displacements, const Remap& how,
           const Image& moved, Arena& arena);

}  // namespace gpupipe
