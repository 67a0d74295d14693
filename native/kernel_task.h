// The tasks of gpupipe._kernels.
#pragma once

#include "output.h"
#include "task.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <atomic>

namespace gpupipe {

extern std::atomic<const Variant*> g_variant;  // that tasks made from now on run

// Makes values that were stored past the cache visible before whatever this thread stores next.
inline void order_stores() {
#if defined(__x86_64__)
  _mm_sfence();
#endif
}

// A kernel, and perhaps a task that runs before it.
class KernelTask : public Task {
 public:
  bool run() override {
    if (before_ && !before_->run()) return false;
    run_kernel(variant_);
    order_stores();
    return true;
  }
  bool has_before() const override { return before_ != nullptr; }

 protected:
  virtual void run_kernel(const Variant& variant) = 0;

  // Takes the capsule of the task that runs before the kernel, or None.
  bool read_before(PyObject* object) {
    if (object == Py_None) return true;
    before_ = get_task(object);
    if (!before_) return false;
    // Running and freeing a chain of them would take as much of the stack as it is long.
    if (before_->has_before()) return refuse("the task before has itself a task before it");
    Py_INCREF(object);
    capsule_.reset(object);
    return true;
  }

 private:
  const Variant& variant_ = *g_variant;
  Reference capsule_;
  Task* before_ = nullptr;
};

inline bool read_image(const Buffer& source, Image* image) {
  const Py_ssize_t height = source.side(0), width = source.side(1);
  if (source.item_size() != 1 || source.side(2) != kChannels)
    return refuse("the image is not (H, W, 3) of uint8");
  if (height < 1 || width < 1 || height > kMaxSide || width > kMaxSide)
    return refuse("the image is empty or too large");
  if (source.stride(2) != 1 || source.stride(1) != kChannels ||
      source.stride(0) < width * kChannels)
    return refuse("the rows of the image are not packed");
  *image = {source.bytes(), source.stride(0), int(height), int(width)};
  return true;
}

// A kernel that reads an image (H, W, 3). Its arguments are (image, options, output, before=None).
class ImageTask : public KernelTask {
 public:
  bool read(PyObject* arguments) final {
    PyObject *image, *options, *output, *before = Py_None;
    return PyArg_ParseTuple(arguments, "OO!O!|O", &image, &PyTuple_Type, &options, &PyTuple_Type,
                            &output, &before) &&
           read_before(before) && source_.open(image, PyBUF_SIMPLE, "the image", 3) &&
           read_image(source_, &image_) && output_.read(output) && read_options(options);
  }

 protected:
  // Takes the tuple of what only this kernel needs. The image and the output are read before.
  virtual bool read_options(PyObject* options) = 0;

  Image image_;
  Output output_;

 private:
  Buffer source_;
};

}  // namespace gpupipe
