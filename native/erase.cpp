// The function `erase_stage` of the module.
#include "stage.h"

namespace gpupipe {
namespace {

// Sets a window of each image, of any channels and item size, to one value. The arguments are
// (windows, value): the bytes of a pixel. A window without pixels changes nothing.
class EraseStage : public Stage {
 public:
  bool read(PyObject* arguments) override {
    PyObject* windows;
    const char* bytes;
    if (!PyArg_ParseTuple(arguments, "Oy#", &windows, &bytes, &size_) ||
        !windows_.open(windows, "the windows to erase") || !add_rows(windows_.rows()))
      return false;
    if (size_ > Py_ssize_t(sizeof value_)) return refuse("the value is more than a pixel");
    std::memcpy(value_, bytes, size_t(size_));
    return true;
  }

  bool takes_planes() const override { return true; }

  bool run(int row, Image* image, Arena& arena) const override {
    if (!image->channels || image->channels * image->item_size != size_) return false;
    const int64_t* const w = windows_[row];
    if (w[2] == 0 || w[3] == 0) return true;
    if (!windows_.is_inside(row, image->height, image->width)) return false;
    make_writable(image, arena);
    const int pixel = image->pixel_size();
    for (int k = 0; k < image->pieces(); ++k) {
      const Image piece = image->piece(k);
      uint8_t* const first = piece.row(w[0]) + w[1] * pixel;
      for (int64_t n = 0; n < w[3]; ++n)
        std::memcpy(first + n * pixel, value_ + k * image->item_size, size_t(pixel));
      for (int64_t n = 1; n < w[2]; ++n)
        std::memcpy(first + n * piece.stride, first, size_t(w[3] * pixel));
    }
    return true;
  }

 private:
  RowWindows windows_;
  uint8_t value_[16];
  Py_ssize_t size_ = 0;
};

}  // namespace

PyObject* erase_stage(PyObject* module, PyObject* arguments) {
  return create_stage<EraseStage>(module, arguments);
}

}  // namespace gpupipe
