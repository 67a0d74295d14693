// Where a kernel writes, and how it converts what it writes.
#pragma once

#include <algorithm>
#include <vector>

#include "buffer.h"
#include "variant.h"
#include "without_gil.h"

namespace gpupipe {

// Pixels of one side of an image. Indices of pixels and bytes of a row then fit 32 bits.
constexpr Py_ssize_t kMaxSide = 1 << 20;

// Where the values go: planes, or interleaved pixels. Strides are in bytes.
struct Target {
  uint8_t* values;
  Py_ssize_t plane, row;
  int item_size, height, width;
  bool is_interleaved;
};

inline bool read_target(const Buffer& buffer, Target* target) {
  const Py_ssize_t size = buffer.item_size(), pixel = buffer.stride(2);
  if (buffer.side(0) != kChannels) return refuse("the target is not (3, H, W)");
  if (buffer.side(1) < 1 || buffer.side(2) < 1 || buffer.side(1) > kMaxSide ||
      buffer.side(2) > kMaxSide)
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
  Buffer table, factors;
  Conversion parts[kChannels];

  bool read(PyObject* table_object, PyObject* factors_object, const Target& target) {
    const bool has_table = table_object != Py_None, has_factors = factors_object != Py_None;
    if (has_table && !(table.open(table_object, PyBUF_SIMPLE, "the table", 2) &&
                       table.is_packed(kChannels * 256, target.item_size)))
      return PyErr_Occurred() ? false : refuse("the table is not (3, 256) of the target's dtype");
    if (!has_table && target.item_size != 1) return refuse("a target of numbers needs a table");
    if (has_factors && !(factors.open(factors_object, PyBUF_SIMPLE, "the factors", 2) &&
                         factors.is_packed(3 * kChannels, sizeof(float))))
      return PyErr_Occurred() ? false : refuse("the factors are not (3, 3) of float32");
    const bool can_be_linear = target.item_size == 2 || target.item_size == 4;
    for (int c = 0; c < kChannels; ++c) {
      Conversion& part = parts[c];
      part.item_size = target.item_size;
      part.channels = target.is_interleaved ? kChannels : 1;
      part.is_identity = !has_table;
      part.is_linear = has_factors && can_be_linear;
      part.is_scaling = true;
      for (int k = 0; k < kChannels; ++k) {
        const int channel = target.is_interleaved ? k : c;
        part.table[k] = has_table ? table.bytes() + channel * 256 * target.item_size : nullptr;
      }
      for (int n = 0; part.is_linear && n < kFactors; ++n) {
        const float* own = reinterpret_cast<const float*>(factors.bytes());
        own += target.is_interleaved ? n % kChannels : c;
        part.scale[n] = own[0], part.mean[n] = own[kChannels], part.std[n] = own[2 * kChannels];
        part.is_scaling = part.is_scaling && part.mean[n] == 0 && part.std[n] == 1;
      }
    }
    return true;
  }
};

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

// The output of a kernel. Python passes (target, table, factors).
class Output : public Target {
 public:
  bool read(PyObject* tuple) {
    PyObject *target, *table, *factors;
    return PyArg_ParseTuple(tuple, "OOO", &target, &table, &factors) &&
           buffer_.open(target, PyBUF_WRITABLE, "the target", 3) && read_target(buffer_, this) &&
           conversions_.read(table, factors, *this);
  }

  // How many rows of planes are converted at once: those that follow each other without a gap, as
  // far as their levels fit the cache of the first level: 3 planes of 4096 bytes are 12 of its 32
  // KiB or more. Rows that begin and end in the middle of a cache line are slower: there should be
  // few of them.
  int count_rows_at_once() const {
    const bool is_packed = row == Py_ssize_t{width} * item_size;
    return is_packed && !is_interleaved ? std::max(1, 4096 / width) : 1;
  }

  // Converts `count` levels of channel c, and writes them from the beginning of row n on.
  void write_plane(const Variant& variant, const uint8_t* levels, int c, int n,
                   int64_t count) const {
    variant.convert(levels, values + c * plane + n * row, count, conversions_.parts[c]);
  }

  // Writes planes of levels to `count` rows from row n on; to one row if the target is interleaved.
  void write_planes(const Variant& variant, const Rows& rows, int n, int count) const {
    if (is_interleaved) {
      variant.merge(rows.planes, rows.pixels, width);
      write_pixels(variant, rows.pixels, n);
      return;
    }
    for (int c = 0; c < kChannels; ++c)
      write_plane(variant, rows.planes[c], c, n, int64_t{width} * count);
  }

  // Writes interleaved levels to row n.
  void write_levels(const Variant& variant, const uint8_t* levels, int n, Rows& rows) const {
    if (is_interleaved) {
      write_pixels(variant, levels, n);
      return;
    }
    variant.split(levels, rows.planes, width, false);
    write_planes(variant, rows, n, 1);
  }

 private:
  void write_pixels(const Variant& variant, const uint8_t* levels, int n) const {
    variant.convert(levels, values + n * row, int64_t{width} * kChannels, conversions_.parts[0]);
  }

  Buffer buffer_;
  Conversions conversions_;
};

}  // namespace gpupipe
