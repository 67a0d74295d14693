// Where a kernel writes the result for one sample, and how its values are converted.
#pragma once

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <algorithm>
#include <atomic>

#include "channels.h"
#include "stage.h"

namespace gpupipe {

extern std::atomic<const Variant*> g_variant;  // that stages created from now on run

// Makes values that were stored past the cache visible before whatever this thread stores next.
inline void order_stores() {
#if defined(__x86_64__)
  _mm_sfence();
#endif
}

// Where the values of pixels go: planes, or interleaved. Strides are in bytes.
struct Target {
  uint8_t* values;
  Py_ssize_t plane, row;
  int item_size, height, width, channels;
  bool is_interleaved;
};

// Reads the target of the first sample of a batch (B, C, H, W).
inline bool read_target(const Buffer& buffer, Target* target) {
  const Py_ssize_t size = buffer.item_size(), pixel = buffer.stride(3);
  const Py_ssize_t channels = buffer.side(1);
  if (channels < 1 || channels > kMaxChannels)
    return refuse("the target is not (B, C, H, W) of 1 to 4 channels");
  if (buffer.side(2) < 1 || buffer.side(3) < 1 || buffer.side(2) > kMaxSide ||
      buffer.side(3) > kMaxSide)
    return refuse("the target is empty or too large");
  if (size != 1 && size != 2 && size != 4 && size != 8)
    return refuse("the values of the target do not have 1, 2, 4 or 8 bytes");
  if ((reinterpret_cast<uintptr_t>(buffer.bytes()) | buffer.stride(0) | buffer.stride(1) |
       buffer.stride(2)) % size)
    return refuse("the values of the target are not aligned");
  const bool is_interleaved =
      channels > 1 && buffer.stride(1) == size && pixel == channels * size;
  if (!is_interleaved && pixel != size && buffer.side(3) > 1)
    return refuse("the rows of the target are not packed");
  *target = {buffer.bytes(),      buffer.stride(1),     buffer.stride(2), int(size),
             int(buffer.side(2)), int(buffer.side(3)), int(channels),     is_interleaved};
  return true;
}

// The conversions of a target: one for each plane, or one for all channels.
struct Conversions {
  Buffer table, factors;
  Conversion parts[kMaxChannels];
  bool is_float = false;  // of floats, else of levels

  // Values that stay as they are.
  explicit Conversions(int item_size = 1) : is_float(item_size == sizeof(float)) {
    for (Conversion& part : parts) part = {{}, item_size, 1, true, false, true, {}, {}, {}};
  }

  bool read(PyObject* table_object, PyObject* factors_object, const Target& target) {
    const bool has_table = table_object != Py_None, has_factors = factors_object != Py_None;
    const int channels = target.channels;
    if (has_table && !(table.open(table_object, PyBUF_SIMPLE, "the table", 2) &&
                       table.is_packed(channels * 256, target.item_size)))
      return PyErr_Occurred() ? false : refuse("the table is not (C, 256) of the target's dtype");
    is_float = !has_table && target.item_size == sizeof(float);
    if (!has_table && !is_float && target.item_size != 1)
      return refuse("a target of numbers that are not float32 needs a table");
    if (has_factors && !(factors.open(factors_object, PyBUF_SIMPLE, "the factors", 2) &&
                         factors.is_packed(3 * channels, sizeof(float))))
      return PyErr_Occurred() ? false : refuse("the factors are not (3, C) of float32");
    const bool can_be_linear = target.item_size == 2 || target.item_size == 4;
    for (int c = 0; c < channels; ++c) {
      Conversion& part = parts[c];
      part.item_size = target.item_size;
      part.channels = target.is_interleaved ? channels : 1;
      part.is_identity = !has_table && !(is_float && has_factors);
      part.is_linear = has_factors && can_be_linear;
      part.is_scaling = true;
      for (int k = 0; k < channels; ++k) {
        const int channel = target.is_interleaved ? k : c;
        part.table[k] = has_table ? table.bytes() + channel * 256 * target.item_size : nullptr;
      }
      for (int n = 0; part.is_linear && n < kFactors; ++n) {
        const float* own = reinterpret_cast<const float*>(factors.bytes());
        own += target.is_interleaved ? n % channels : c;
        part.scale[n] = own[0], part.mean[n] = own[channels], part.std[n] = own[2 * channels];
        part.is_scaling = part.is_scaling && part.mean[n] == 0 && part.std[n] == 1;
      }
    }
    return true;
  }
};

// `count` rows of an image of some width, which follow each other in each plane, and of interleaved
// pixels.
class Rows {
 public:
  Rows(Arena& arena, const Image& image, int width, int count = 1) {
    const size_t values = size_t(width) * size_t(count) + kPadding;
    const size_t size = values * size_t(image.item_size);
    for (uint8_t*& plane : planes) plane = arena.take(size);
    pixels = arena.take(size * size_t(image.channels));
  }
  uint8_t* planes[kMaxChannels];
  uint8_t* pixels;
};

// Where the result for one sample goes, and how its values are converted.
class Slot : public Target {
 public:
  Slot(const Target& target, const Conversions& conversions)
      : Target(target), conversions_(&conversions) {}

  // Writes the values to an image as they are.
  explicit Slot(const Image& image)
      : Slot({image.pixels, image.item_size, Py_ssize_t(image.stride), image.item_size,
              image.height, image.width, image.channels, true},
             copy_values(image.item_size)) {
    is_batch_ = false;
  }

  // The memory of the values.
  Image as_image() const {
    const bool is_planar = !is_interleaved && channels > 1;
    const int64_t between = is_planar ? plane : Image::kInterleaved;
    return {values, row, height, width, channels, item_size, true, between};
  }

  // Reads the mean and the standard deviation of each of up to three channels of floats. Returns
  // false if values stay as they are.
  bool read_normalization(FloatChange* change) const {
    if (conversions_->parts[0].is_identity) return false;
    for (int c = 0; c < std::min(channels, kChannels); ++c) {
      const Conversion& part = conversions_->parts[is_interleaved ? 0 : c];
      change->low[c] = part.mean[is_interleaved ? c : 0];
      change->range[c] = part.std[is_interleaved ? c : 0];
    }
    return true;
  }

  // Whether values are written past the cache.
  bool is_streamed() const { return conversions_->is_float && is_batch_; }

  // How many rows of planes are converted at once: those that follow each other without a gap, as
  // far as their levels fit the cache of the first level: 3 planes of 4096 bytes are 12 of its 32
  // KiB or more. Rows that begin and end in the middle of a cache line are slower: there should be
  // few of them.
  int count_rows_at_once() const {
    const bool is_packed = row == Py_ssize_t{width} * item_size;
    return is_packed && !is_interleaved ? std::max(1, 4096 / width) : 1;
  }

  // Converts `count` values of channel c, and writes them from the beginning of row n on.
  void write_plane(const Variant& variant, const uint8_t* from, int c, int n,
                   int64_t count) const {
    convert(variant, from, values + c * plane + n * row, count, conversions_->parts[c]);
  }

  // Writes planes to `count` rows from row n on; to one row if the target is interleaved.
  void write_planes(const Variant& variant, const uint8_t* const planes[], const Rows& rows, int n,
                    int count) const {
    if (is_interleaved) {
      const bool is_copy = conversions_->parts[0].is_identity && !is_streamed();
      uint8_t* const to = is_copy ? values + n * row : rows.pixels;
      merge_row(variant, planes, to, channels, source_size(), width);
      if (is_copy) return;
      write_pixels(variant, rows.pixels, rows, n);
      return;
    }
    for (int c = 0; c < channels; ++c)
      write_plane(variant, planes[c], c, n, int64_t{width} * count);
  }

  // Writes interleaved pixels to row n, the last one first if `is_reversed`.
  void write_pixels(const Variant& variant, const uint8_t* pixels, const Rows& rows, int n,
                    bool is_reversed = false) const {
    uint8_t* const to = values + n * row;
    const bool is_copy = conversions_->parts[0].is_identity && !is_streamed();
    if (!is_interleaved && channels > 1) {
      uint8_t* planes[kMaxChannels];
      for (int c = 0; c < channels; ++c) planes[c] = is_copy ? to + c * plane : rows.planes[c];
      split_row(variant, pixels, planes, channels, source_size(), width, is_reversed);
      if (!is_copy) write_planes(variant, planes, rows, n, 1);
      return;
    }
    if (is_reversed) {
      uint8_t* const turned = is_copy ? to : rows.pixels;
      reverse_row(variant, pixels, turned, channels * source_size(), width);
      if (is_copy) return;
      pixels = turned;
    }
    convert(variant, pixels, to, int64_t{width} * channels, conversions_->parts[0]);
  }

  // Writes the first row of an image, of interleaved pixels or planes, as write_pixels does.
  void write_row(const Variant& variant, const Image& image, const Rows& rows, int n,
                 bool is_reversed) const {
    if (!image.has_planes()) {
      write_pixels(variant, image.pixels, rows, n, is_reversed);
      return;
    }
    const uint8_t* planes[kMaxChannels];
    for (int c = 0; c < image.channels; ++c) {
      planes[c] = image.pixels + c * image.plane;
      if (!is_reversed) continue;
      reverse_row(variant, planes[c], rows.planes[c], image.item_size, image.width);
      planes[c] = rows.planes[c];
    }
    write_planes(variant, planes, rows, n, 1);
  }

 private:
  static const Conversions& copy_values(int item_size) {
    static const Conversions levels(1), floats(sizeof(float));
    return item_size == 1 ? levels : floats;
  }

  // Bytes of a value before it is converted.
  int source_size() const { return conversions_->is_float ? int(sizeof(float)) : 1; }

  void convert(const Variant& variant, const uint8_t* from, uint8_t* to, int64_t count,
               const Conversion& k) const {
    if (k.is_identity && is_streamed())
      variant.floats->stream(reinterpret_cast<const float*>(from), reinterpret_cast<float*>(to),
                             count);
    else if (k.is_identity)
      std::memcpy(to, from, size_t(count * k.item_size));
    else if (conversions_->is_float)
      variant.floats->normalize(reinterpret_cast<const float*>(from),
                                reinterpret_cast<float*>(to), count, k);
    else
      variant.convert(from, to, count, k);
  }

  const Conversions* conversions_;
  bool is_batch_ = true;
};

}  // namespace gpupipe
