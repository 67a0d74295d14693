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

void transpose_piece(const Image& from, const Image& to) {
  switch (from.pixel_size()) {
    case 1: return transpose<1>(from, to);
    case 2: return transpose<2>(from, to);
    case 3: return transpose<3>(from, to);
    case 4: return transpose<4>(from, to);
    case 8: return transpose<8>(from, to);
    case 12: return transpose<12>(from, to);
    case 16: return transpose<16>(from, to);
  }
}

// Swaps rows and columns of images of any channels, of uint8 or float32. It has no arguments.
class TransposeStage : public Stage {
 public:
  bool read(PyObject* arguments) override { return PyArg_ParseTuple(arguments, ""); }

  bool takes_planes() const override { return true; }

  bool run(int, Image* image, Arena& arena) const override {
    if (!image->channels) return false;
    const Image result = take_alike(arena, *image, image->width, image->height);
    for (int n = 0; n < image->pieces(); ++n) transpose_piece(image->piece(n), result.piece(n));
    *image = result;
    return true;
  }
};

}  // namespace

PyObject* transpose_stage(PyObject* module, PyObject* arguments) {
  return create_stage<TransposeStage>(module, arguments);
}

}  // namespace gpupipe
