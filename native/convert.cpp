// The functions `prepare_convert` and `prepare_convert_planes` of the module.
#include "kernel_task.h"

namespace gpupipe {
namespace {

class ConvertTask : public ImageTask {
 protected:
  bool read_options(PyObject* options) override {
    if (!PyArg_ParseTuple(options, "pp", &flips_x_, &flips_y_)) return false;
    if (image_.height != output_.height || image_.width != output_.width)
      return refuse("the image and the target differ in size");
    return true;
  }

  void run_kernel(const Variant& variant) override {
    Rows rows(output_.width, 1);
    for (int row = 0; row < output_.height; ++row) {
      const int from = flips_y_ ? output_.height - 1 - row : row;
      const uint8_t* const pixels = image_.pixels + from * image_.stride;
      if (output_.is_interleaved && !flips_x_) {
        output_.write_levels(variant, pixels, row, rows);
        continue;
      }
      variant.split(pixels, rows.planes, output_.width, flips_x_);
      output_.write_planes(variant, rows, row, 1);
    }
  }

 private:
  int flips_x_, flips_y_;
};

// The arguments are (image, output).
class ConvertPlanesTask : public KernelTask {
 public:
  bool read(PyObject* arguments) override {
    PyObject *image, *output;
    if (!PyArg_ParseTuple(arguments, "OO!", &image, &PyTuple_Type, &output) ||
        !source_.open(image, PyBUF_SIMPLE, "the image", 3) || !output_.read(output))
      return false;
    if (source_.item_size() != 1 || source_.side(0) != kChannels ||
        source_.side(1) != output_.height || source_.side(2) != output_.width ||
        source_.stride(2) != 1 || output_.is_interleaved)
      return refuse("the image and the target are not planes (3, H, W) of one size in packed rows");
    return true;
  }

 protected:
  void run_kernel(const Variant& variant) override {
    const bool is_packed = source_.stride(1) == output_.width &&
                           output_.row == Py_ssize_t{output_.width} * output_.item_size;
    const int rows = is_packed ? 1 : output_.height;
    const int64_t count = int64_t{output_.width} * (is_packed ? output_.height : 1);
    for (int c = 0; c < kChannels; ++c)
      for (int row = 0; row < rows; ++row)
        output_.write_plane(variant,
                            source_.bytes() + c * source_.stride(0) + row * source_.stride(1), c,
                            row, count);
  }

 private:
  Buffer source_;
  Output output_;
};

}  // namespace

PyObject* prepare_convert(PyObject* module, PyObject* arguments) {
  return prepare<ConvertTask>(module, arguments);
}

PyObject* prepare_convert_planes(PyObject* module, PyObject* arguments) {
  return prepare<ConvertPlanesTask>(module, arguments);
}

}  // namespace gpupipe
