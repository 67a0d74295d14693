// What functions of both extensions read their arguments with.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <cstdint>
#include <cstring>

namespace gpupipe {

// Sets a ValueError, and returns false.
inline bool refuse(const char* message) {
  PyErr_SetString(PyExc_ValueError, message);
  return false;
}

// A buffer of Python, released at the end of its scope.
class Buffer {
 public:
  Buffer() { view_.obj = nullptr; }
  ~Buffer() { PyBuffer_Release(&view_); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  // Returns false, with an exception set, if the object has no such buffer.
  bool open(PyObject* object, int flags) { return PyObject_GetBuffer(object, &view_, flags) == 0; }

  // Opens a buffer with strides that has this number of axes.
  bool open(PyObject* object, int flags, const char* name, int axes) {
    if (!open(object, flags | PyBUF_STRIDES)) return false;
    if (view_.ndim == axes) return true;
    PyErr_Format(PyExc_ValueError, "%s has %d axes instead of %d", name, view_.ndim, axes);
    return false;
  }

  uint8_t* bytes() const { return static_cast<uint8_t*>(view_.buf); }
  size_t size() const { return static_cast<size_t>(view_.len); }
  int axes() const { return view_.ndim; }
  Py_ssize_t item_size() const { return view_.itemsize; }
  bool is_read_only() const { return view_.readonly; }

  // Whether the items are of a dtype: one of the letters of the module struct. Opened with
  // PyBUF_FORMAT.
  bool has_format(const char* letters) const {
    const char* format = view_.format ? view_.format : "B";
    return format[0] && !format[1] && std::strchr(letters, format[0]);
  }
  Py_ssize_t side(int axis) const { return view_.shape[axis]; }
  Py_ssize_t stride(int axis) const { return view_.strides[axis]; }

  // Whether the items are packed and aligned, `count` of `item_size` bytes.
  bool is_packed(Py_ssize_t count, Py_ssize_t item_size) const {
    return view_.itemsize == item_size && view_.len % item_size == 0 &&
           view_.len / item_size == count && is_aligned(item_size) &&
           PyBuffer_IsContiguous(&view_, 'C');
  }

  bool is_aligned(Py_ssize_t item_size) const {
    return !view_.len || reinterpret_cast<uintptr_t>(view_.buf) % size_t(item_size) == 0;
  }

 private:
  Py_buffer view_;
};

}  // namespace gpupipe
