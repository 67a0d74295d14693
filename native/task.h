// A kernel and its arguments: a function of the module prepares it, and `run` runs it later, with
// others, without the GIL.
#pragma once

#include "arguments.h"

namespace gpupipe {

class Task : public Work {
 public:
  Task() : Work{[](Work* work) { return static_cast<Task*>(work)->run_both(); }} {}
  virtual ~Task() { Py_XDECREF(capsule_); }
  Task(const Task&) = delete;
  Task& operator=(const Task&) = delete;

  // Reads the arguments of the function. Returns false, with an exception set, if one is wrong.
  virtual bool read(PyObject* arguments) = 0;

 protected:
  // Does not touch Python. May throw std::bad_alloc.
  virtual void run_kernel(const Variant& variant) = 0;

  // Takes the work that is done before the kernel: a capsule, or None for none.
  bool read_before(PyObject* object) {
    if (!object || object == Py_None) return true;
    before_ = static_cast<Work*>(PyCapsule_GetPointer(object, kWorkName));
    if (before_) Py_INCREF(capsule_ = object);
    return before_ != nullptr;
  }
  bool has_before() const { return before_ != nullptr; }

 private:
  bool run_both() {
    if (before_ && !before_->run(before_)) return false;
    run_kernel(variant_);
    order_stores();
    return true;
  }

  const Variant& variant_ = *g_variant;
  PyObject* capsule_ = nullptr;
  Work* before_ = nullptr;
};

// A task that reads an image (H, W, 3), and writes to a target (3, H, W).
class ImageTask : public Task {
 protected:
  bool open(PyObject* source, PyObject* target, PyObject* table, PyObject* numbers,
            PyObject* before) {
    return read_before(before) && source_.open(source, PyBUF_SIMPLE, "the image", 3) &&
           target_buffer_.open(target, PyBUF_WRITABLE, "the target", 3) &&
           read_image(source_, &image_) && read_target(target_buffer_, &target_) &&
           conversions_.read(table, numbers, target_);
  }

  Image image_;
  Target target_;
  Conversions conversions_;

 private:
  Buffer source_, target_buffer_;
};

// The function of the module that prepares a kind of task.
template <typename Kind>
PyObject* prepare(PyObject*, PyObject* arguments) {
  std::unique_ptr<Task> task(new (std::nothrow) Kind);
  if (!task) return PyErr_NoMemory();
  if (!task->read(arguments)) return nullptr;
  Work* const work = task.get();
  PyObject* const capsule = PyCapsule_New(work, kWorkName, [](PyObject* object) {
    delete static_cast<Task*>(static_cast<Work*>(PyCapsule_GetPointer(object, kWorkName)));
  });
  if (capsule) task.release();
  return capsule;
}

}  // namespace gpupipe
