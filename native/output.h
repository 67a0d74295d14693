// Where a kernel writes: the slots of a batch, with a conversion of the values, or an image.
#pragma once

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <algorithm>
#include <atomic>
#include <deque>
#include <optional>
#include <vector>

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

// The slots of a batch. Python passes (batch, table, factors, windows, value): after a sample is
// written, its window is set to the value. Windows and value are None if nothing is erased. The
// batch is (B, C, H, W), or a list of such parts, each of a size of its own.
class Output {
 public:
  bool read(PyObject* tuple) {
    PyObject *batch, *table, *factors, *windows = Py_None, *value = Py_None;
    if (!PyTuple_Check(tuple)) return refuse("the output is no tuple");
    return PyArg_ParseTuple(tuple, "OOO|OO", &batch, &table, &factors, &windows, &value) &&
           (PyList_Check(batch) ? read_each(batch) : read_batch(batch)) &&
           conversions_.read(table, factors, first_) && read_erase(windows, value);
  }

  Py_ssize_t rows() const {
    return targets_.empty() ? batch_.side(0) : Py_ssize_t(targets_.size());
  }

  // Whether images of so many channels, of values of so many bytes, can be written.
  bool takes(int channels, int item_size) const {
    return channels == first_.channels &&
           item_size == (conversions_.is_float ? int(sizeof(float)) : 1);
  }

  Slot slot(int row) const {
    if (!targets_.empty()) return Slot(targets_[size_t(row)], conversions_);
    Slot slot(first_, conversions_);
    slot.values += row * batch_.stride(0);
    return slot;
  }

  // Sets the window of a sample to the value, after the sample was written.
  void erase(int row, const Slot& slot) const {
    if (!has_windows_) return;
    const int64_t* w = windows_[row];
    const int64_t top = std::clamp<int64_t>(w[0], 0, slot.height);
    const int64_t left = std::clamp<int64_t>(w[1], 0, slot.width);
    const int64_t bottom = std::clamp<int64_t>(w[0] + w[2], top, slot.height);
    const int64_t right = std::clamp<int64_t>(w[1] + w[3], left, slot.width);
    const Py_ssize_t pixel = slot.item_size * (slot.is_interleaved ? slot.channels : 1);
    order_stores();
    const auto set = [&](auto zero) {
      for (int c = 0; c < slot.channels; ++c) {
        auto value = zero;
        std::memcpy(&value, value_.bytes() + c * slot.item_size, sizeof value);
        for (int64_t y = top; y < bottom; ++y) {
          uint8_t* const to = slot.values + c * slot.plane + y * slot.row;
          for (int64_t x = left; x < right; ++x) std::memcpy(to + x * pixel, &value, sizeof value);
        }
      }
    };
    if (slot.item_size == 1) set(uint8_t{});
    if (slot.item_size == 2) set(uint16_t{});
    if (slot.item_size == 4) set(uint32_t{});
    if (slot.item_size == 8) set(uint64_t{});
  }

 private:
  bool read_batch(PyObject* batch) {
    return batch_.open(batch, PyBUF_WRITABLE, "the target", 4) && read_target(batch_, &first_);
  }

  bool read_each(PyObject* list) {
    const Py_ssize_t count = PyList_Size(list);
    if (!count) return refuse("the list of targets is empty");
    for (Py_ssize_t n = 0; n < count; ++n) {
      Buffer& one = each_.emplace_back();
      Target target;
      if (!one.open(PyList_GetItem(list, n), PyBUF_WRITABLE, "a target", 4) ||
          !read_target(one, &target))
        return false;
      if (!n) first_ = target;
      if (target.item_size != first_.item_size || target.channels != first_.channels ||
          target.is_interleaved != first_.is_interleaved)
        return refuse("the targets of a list are not of one dtype and layout");
      for (Py_ssize_t row = 0; row < one.side(0); ++row) {
        targets_.push_back(target);
        target.values += one.stride(0);
      }
    }
    if (targets_.empty()) return refuse("the targets of a list have no samples");
    return true;
  }

  bool read_erase(PyObject* windows, PyObject* value) {
    has_windows_ = windows != Py_None;
    if (!has_windows_) return true;
    if (!windows_.open(windows, "the windows to erase") || !value_.open(value, PyBUF_STRIDES))
      return false;
    if (windows_.rows() != rows())
      return refuse("the windows to erase are not one for each sample");
    for (Py_ssize_t row = 0; row < rows(); ++row)
      if (!windows_.is_near(row)) return refuse("a window to erase is too far away");
    return value_.is_packed(first_.channels, first_.item_size) ||
           refuse("the value to erase with is not (C,) of the target's dtype");
  }

  Buffer batch_, value_;
  std::deque<Buffer> each_;  // the targets of a list, and what is known of them
  std::vector<Target> targets_;
  Target first_;
  Conversions conversions_;
  RowWindows windows_;
  bool has_windows_ = false;
};

// A stage that writes to the batch if it has an output, else to an image.
class OutputStage : public Stage {
 public:
  bool run(int row, Image* image, Arena& arena) const final {
    int height, width;
    if (!image->channels || !find_size(row, *image, &height, &width)) return false;
    if (!output_ && make_image(row, image, arena)) return true;
    if (!output_) {
      const Image result = take_image(arena, height, width, image->channels, image->item_size);
      run_kernel(row, *image, Slot(result), arena);
      order_stores();
      *image = result;
      return true;
    }
    const Slot slot = output_->slot(row);
    if (!output_->takes(image->channels, image->item_size) || slot.height != height ||
        slot.width != width)
      return false;
    run_kernel(row, *image, slot, arena);
    output_->erase(row, slot);
    order_stores();
    return true;
  }

 protected:
  // Takes the output; None for an image.
  bool read_output(PyObject* output) {
    if (output == Py_None) return true;
    output_.emplace();
    return output_->read(output) && add_rows(output_->rows());
  }

  // Returns the size of the result; false if this sample cannot be done here.
  virtual bool find_size(int row, const Image& image, int* height, int* width) const = 0;

  // Makes the image of a sample where that costs less than the kernel; returns false elsewhere.
  virtual bool make_image(int, Image*, Arena&) const { return false; }

  virtual void run_kernel(int row, const Image& image, const Slot& slot, Arena& arena) const = 0;

  const Variant& variant_ = *g_variant;

 private:
  std::optional<Output> output_;
};

// [height, width] of the results, (rows, 2).
class RowSizes : public RowValues<int64_t> {
 public:
  bool open(PyObject* object, const char* name) {
    if (!RowValues<int64_t>::open(object, name, 2)) return false;
    for (Py_ssize_t n = 0; n < 2 * rows(); ++n) {
      const int64_t side = (*this)[0][n];
      if (side < 1 || side > kMaxSide) return refuse("a size is empty or too large");
    }
    return true;
  }
};

// Whether to flip the image from left to right, and from top to bottom, (rows, 2).
class RowFlips : public RowValues<uint8_t> {
 public:
  bool open(PyObject* object) { return RowValues<uint8_t>::open(object, "the flips", 2); }
};

}  // namespace gpupipe
