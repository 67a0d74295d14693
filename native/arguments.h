// The arguments of the functions of the module: buffers of Python, checked.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <algorithm>
#include <cmath>
#include <memory>
#include <new>
#include <vector>

#include "variant.h"
#include "work.h"

namespace gpupipe {

extern const Variant* g_variant;

// A buffer of Python, released at the end of its scope.
class Buffer {
 public:
  Buffer() { view_.obj = nullptr; }
  ~Buffer() { PyBuffer_Release(&view_); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  bool open(PyObject* object, int flags, const char* what, int axes) {
    if (PyObject_GetBuffer(object, &view_, flags | PyBUF_STRIDES) != 0) return false;
    if (view_.ndim == axes) return true;
    PyErr_Format(PyExc_ValueError, "%s has %d axes instead of %d", what, view_.ndim, axes);
    return false;
  }
  uint8_t* bytes() const { return static_cast<uint8_t*>(view_.buf); }
  Py_ssize_t item_size() const { return view_.itemsize; }
  Py_ssize_t side(int axis) const { return view_.shape[axis]; }
  Py_ssize_t stride(int axis) const { return view_.strides[axis]; }

  // Whether the items are packed, `count` of `item_size` bytes.
  bool is_packed(Py_ssize_t count, Py_ssize_t item_size) const {
    return view_.itemsize == item_size && view_.len == count * item_size &&
           PyBuffer_IsContiguous(&view_, 'C');
  }

 private:
  Py_buffer view_;
};

inline bool refuse(const char* message) {
  PyErr_SetString(PyExc_ValueError, message);
  return false;
}

constexpr Py_ssize_t kMostSide = 1 << 20;

inline bool read_image(const Buffer& source, Image* image) {
  const Py_ssize_t height = source.side(0), width = source.side(1);
  if (source.item_size() != 1 || source.side(2) != kChannels)
    return refuse("the image is not (H, W, 3) of uint8");
  if (height < 1 || width < 1 || height > kMostSide || width > kMostSide)
    return refuse("the image is empty or too large");
  if (source.stride(2) != 1 || source.stride(1) != kChannels ||
      source.stride(0) < width * kChannels)
    return refuse("the rows of the image are not packed");
  *image = {source.bytes(), source.stride(0), int(height), int(width)};
  return true;
}

// Where the values go: planes, or interleaved pixels.
struct Target {
  uint8_t* values;
  Py_ssize_t plane, row;
  int item_size, height, width;
  bool is_interleaved;
};

inline bool read_target(const Buffer& buffer, Target* target) {
  const Py_ssize_t size = buffer.item_size(), pixel = buffer.stride(2);
  if (buffer.side(0) != kChannels) return refuse("the target is not (3, H, W)");
  if (buffer.side(1) < 1 || buffer.side(2) < 1 || buffer.side(1) > kMostSide ||
      buffer.side(2) > kMostSide)
    return refuse("the target is empty or too large");
  if (size != 1 && size != 2 && size != 4 && size != 8)
    return refuse("the values of the target do not have 1, 2, 4 or 8 bytes");
  if ((reinterpret_cast<uintptr_t>(buffer.bytes()) | buffer.stride(0) | buffer.stride(1)) % size)
    return refuse("the values of the target are not aligned");
  const bool is_interleaved = buffer.stride(0) == size && pixel == kChannels * size;
  if (!is_interleaved && pixel != size && buffer.side(2) > 1)
    return refuse("the rows of the target are not packed");
  *target = {buffer.bytes(),      buffer.stride(0),     buffer.stride(1),  int(size),
             int(buffer.side(1)), int(buffer.side(2)), is_interleaved};
  return true;
}

// The conversions of a target: one for each plane, or one for all channels.
struct Conversions {
  Buffer table, numbers;
  Conversion parts[kChannels];

  bool read(PyObject* table_object, PyObject* numbers_object, const Target& target) {
    const bool has_table = table_object != Py_None, has_numbers = numbers_object != Py_None;
    if (has_table && !(table.open(table_object, PyBUF_SIMPLE, "the table", 2) &&
                       table.is_packed(kChannels * 256, target.item_size)))
      return PyErr_Occurred() ? false : refuse("the table is not (3, 256) of the target's dtype");
    if (!has_table && target.item_size != 1) return refuse("a target of numbers needs a table");
    if (has_numbers && !(numbers.open(numbers_object, PyBUF_SIMPLE, "the numbers", 2) &&
                         numbers.is_packed(3 * kChannels, sizeof(float))))
      return PyErr_Occurred() ? false : refuse("the numbers are not (3, 3) of float32");
    const bool can_be_linear = target.item_size == 2 || target.item_size == 4;
    for (int c = 0; c < kChannels; ++c) {
      Conversion& part = parts[c];
      part.item_size = target.item_size;
      part.channels = target.is_interleaved ? kChannels : 1;
      part.is_identity = !has_table;
      part.is_linear = has_numbers && can_be_linear;
      part.is_scaling = true;
      for (int k = 0; k < kChannels; ++k) {
        const int channel = target.is_interleaved ? k : c;
        part.table[k] = has_table ? table.bytes() + channel * 256 * target.item_size : nullptr;
      }
      for (int n = 0; part.is_linear && n < kNumbers; ++n) {
        const float* own = reinterpret_cast<const float*>(numbers.bytes());
        own += target.is_interleaved ? n % kChannels : c;
        part.scale[n] = own[0], part.mean[n] = own[kChannels], part.std[n] = own[2 * kChannels];
        part.is_scaling = part.is_scaling && part.mean[n] == 0 && part.std[n] == 1;
      }
    }
    return true;
  }
};

// How many rows of planes are converted at once: those that follow each other without a gap, as far
// as their levels fit the cache of the first level. Values that begin and end in the middle of a
// cache line are slower, so there should be few of them.
inline int count_rows_at_once(const Target& target) {
  const bool is_packed = target.row == Py_ssize_t{target.width} * target.item_size;
  return is_packed && !target.is_interleaved ? std::max(1, 4096 / target.width) : 1;
}

// `count` rows of levels, which follow each other in each plane, and of interleaved pixels.
class Rows {
 public:
  Rows(int width, int count) : bytes_(2 * kChannels * (size_t(width) * count + kPadding)) {
    const size_t size = size_t(width) * count + kPadding;
    for (int c = 0; c < kChannels; ++c) planes[c] = bytes_.data() + c * size;
    pixels = bytes_.data() + kChannels * size;
  }
  uint8_t* planes[kChannels];
  uint8_t* pixels;

 private:
  std::vector<uint8_t> bytes_;
};

// Writes rows of levels to their places, from `row` on; one row if the target is interleaved.
inline void write_planes(const Variant& variant, const uint8_t* const planes[],
                         const Target& target, int row, int count, const Conversions& conversions,
                         uint8_t* pixels) {
  uint8_t* const values = target.values + row * target.row;
  if (target.is_interleaved) {
    variant.merge(planes, pixels, target.width);
    variant.convert(pixels, values, int64_t{target.width} * kChannels, conversions.parts[0]);
    return;
  }
  for (int c = 0; c < kChannels; ++c)
    variant.convert(planes[c], values + c * target.plane, int64_t{target.width} * count,
                    conversions.parts[c]);
}

// Writes one row of interleaved levels to its place.
inline void write_levels(const Variant& variant, const uint8_t* levels, const Target& target,
                         int row, const Conversions& conversions, Rows& rows) {
  if (target.is_interleaved) {
    variant.convert(levels, target.values + row * target.row, int64_t{target.width} * kChannels,
                    conversions.parts[0]);
    return;
  }
  variant.split(levels, rows.planes, target.width, false);
  write_planes(variant, rows.planes, target, row, 1, conversions, rows.pixels);
}

// Makes values that were stored past the cache visible before whatever this thread stores next.
inline void order_stores() {
#if defined(__x86_64__)
  _mm_sfence();
#endif
}

}  // namespace gpupipe
