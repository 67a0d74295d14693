// The function `transpose_stage` of the module.
#include "stage.h"

namespace gpupipe {
namespace {

constexpr int kTile = 32;  // pixels of a side: the rows and columns of a tile stay in the cache

// Copies pixels of kSize bytes, so that rows become columns.
template <int kSize>
void transpose(const Image& from, const Image& to) {
  for (int top = 0; top < from.height; top += kTile)
    for (int left = 0; left < from.width; left += kTile) {
      const int bottom = std::min(top + kTile, from.height);
      const int right = std::min(left + kTile, from.width);
      for (int x = left; x < right; ++x) {
        uint8_t* const row = to.row(x);
        for (int y = top; y < bottom; ++y)
          std::memcpy(row + y * kSize, from.row(y) + x * kSize, kSize);
      }
    }
}

// Swaps rows and columns of images of any channels and item size. It has no arguments.
class TransposeStage : public Stage {
 public:
  bool read(PyObject* arguments) override { return PyArg_ParseTuple(arguments, ""); }

  bool run(int, Image* image, Arena& arena) const override {
    if (!image->channels) return false;
    const Image result =
        take_image(arena, image->width, image->height, image->channels, image->item_size);
    switch (image->pixel_size()) {
      case 1: transpose<1>(*image, result); break;
      case 2: transpose<2>(*image, result); break;
      case 3: transpose<3>(*image, result); break;
      case 4: transpose<4>(*image, result); break;
      case 8: transpose<8>(*image, result); break;
      case 12: transpose<12>(*image, result); break;
      case 16: transpose<16>(*image, result); break;
      default: return false;
    }
    *image = result;
    return true;
  }
};

}  // namespace

PyObject* transpose_stage(PyObject* module, PyObject* arguments) {
  return create_stage<TransposeStage>(module, arguments);
}

}  // namespace gpupipe
