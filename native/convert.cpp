// The functions `prepare_convert` and `prepare_convert_planes` of the module.
#include "task.h"

namespace gpupipe {
namespace {

class ConvertTask : public ImageTask {
 public:
  bool read(PyObject* arguments) override {
    PyObject *source, *target, *table, *numbers, *before = nullptr;
    int flips_x, flips_y;
    if (!PyArg_ParseTuple(arguments, "OppOOO|O", &source, &flips_x, &flips_y, &target, &table,
                          &numbers, &before) ||
        !open(source, target, table, numbers, before))
      return false;
    flips_x_ = flips_x, flips_y_ = flips_y;
    if (image_.height != target_.height || image_.width != target_.width)
      return refuse("the image and the target differ in size");
    return true;
  }

 protected:
  void run_kernel(const Variant& variant) override {
    Rows rows(target_.width, 1);
    for (int row = 0; row < target_.height; ++row) {
      const int from = flips_y_ ? target_.height - 1 - row : row;
      const uint8_t* const pixels = image_.pixels + from * image_.stride;
      if (target_.is_interleaved && !flips_x_) {
        write_levels(variant, pixels, target_, row, conversions_, rows);
        continue;
      }
      variant.split(pixels, rows.planes, target_.width, flips_x_);
      write_planes(variant, rows.planes, target_, row, 1, conversions_, rows.pixels);
    }
  }

 private:
  bool flips_x_, flips_y_;
};

class ConvertPlanesTask : public Task {
 public:
  bool read(PyObject* arguments) override {
    PyObject *source_object, *target_object, *table, *numbers;
    if (!PyArg_ParseTuple(arguments, "OOOO", &source_object, &target_object, &table, &numbers) ||
        !source_.open(source_object, PyBUF_SIMPLE, "the image", 3) ||
        !target_buffer_.open(target_object, PyBUF_WRITABLE, "the target", 3) ||
        !read_target(target_buffer_, &target_) || !conversions_.read(table, numbers, target_))
      return false;
    if (source_.item_size() != 1 || source_.side(0) != kChannels ||
        source_.side(1) != target_.height || source_.side(2) != target_.width ||
        source_.stride(2) != 1 || target_.is_interleaved)
      return refuse("the image and the target are not planes (3, H, W) of one size, in packed rows");
    return true;
  }

 protected:
  void run_kernel(const Variant& variant) override {
    const bool is_packed = source_.stride(1) == target_.width &&
                           target_.row == Py_ssize_t{target_.width} * target_.item_size;
    const int rows = is_packed ? 1 : target_.height;
    const int64_t count = int64_t{target_.width} * (is_packed ? target_.height : 1);
    for (int c = 0; c < kChannels; ++c)
      for (int row = 0; row < rows; ++row)
        variant.convert(source_.bytes() + c * source_.stride(0) + row * source_.stride(1),
                        target_.values + c * target_.plane + row * target_.row, count,
                        conversions_.parts[c]);
  }

 private:
  Buffer source_, target_buffer_;
  Target target_;
  Conversions conversions_;
};

}  // namespace

PyObject* prepare_convert(PyObject* module, PyObject* arguments) {
  return prepare<ConvertTask>(module, arguments);
}

PyObject* prepare_convert_planes(PyObject* module, PyObject* arguments) {
  return prepare<ConvertPlanesTask>(module, arguments);
}

}  // namespace gpupipe
