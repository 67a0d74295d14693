// Where a kernel writes: the slots of a batch, with a conversion of the values, or an image.
#pragma once

#include <deque>
#include <optional>
#include <vector>

#include "slot.h"

namespace gpupipe {

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

// The slots of a batch. Python passes (batch, table, factors, windows, value): after a sample is
// written, its window is set to the value. Windows and value are None if nothing is erased. The
// batch is one of
//   (B, C, H, W)
//   [part, ...]                               such parts, each of a size of its own
//   ((B, C, H, W), sizes, C, is_interleaved)  images of these sizes, with zeros beyond their ends
//   ((values,), sizes, C, is_interleaved)     one image after the other
class Output {
 public:
  bool read(PyObject* tuple) {
    PyObject *batch, *table, *factors, *windows = Py_None, *value = Py_None;
    if (!PyTuple_Check(tuple)) return refuse("the output is no tuple");
    return PyArg_ParseTuple(tuple, "OOO|OO", &batch, &table, &factors, &windows, &value) &&
           (PyTuple_Check(batch)  ? read_unequal(batch)
            : PyList_Check(batch) ? read_each(batch)
                                  : read_batch(batch)) &&
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

  // After a sample was written, sets its window to the value, and what pads it to zero.
  void finish(int row, const Slot& slot) const {
    if (has_windows_) erase(row, slot);
    if (is_padded_) clear_border(slot);
  }

 private:
  void erase(int row, const Slot& slot) const {
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

  void clear_border(const Slot& slot) const {
    const size_t width = size_t(slot.width) * size_t(slot.item_size);
    for (int c = 0; c < slot.channels; ++c) {
      uint8_t* const plane = slot.values + c * slot.plane;
      if (width < size_t(slot.row))
        for (int y = 0; y < slot.height; ++y)
          std::memset(plane + y * slot.row + width, 0, size_t(slot.row) - width);
      std::memset(plane + slot.height * slot.row, 0,
                  size_t(first_.height - slot.height) * size_t(slot.row));
    }
  }

  bool read_batch(PyObject* batch) {
    return batch_.open(batch, PyBUF_WRITABLE, "the target", 4) && read_target(batch_, &first_);
  }

  bool read_unequal(PyObject* tuple) {
    PyObject *values, *size_array;
    int channels, is_interleaved;
    RowSizes sizes;
    if (!PyArg_ParseTuple(tuple, "OOip", &values, &size_array, &channels, &is_interleaved) ||
        !sizes.open(size_array, "the sizes of the target") ||
        !batch_.open(values, PyBUF_WRITABLE | PyBUF_STRIDES))
      return false;
    if (!sizes.rows()) return refuse("the target has no samples");
    is_padded_ = batch_.axes() == 4;
    if (!is_padded_ && batch_.axes() != 1) return refuse("the target has neither 1 nor 4 axes");
    return is_padded_ ? read_padded(sizes) : read_flat(sizes, channels, is_interleaved);
  }

  bool read_padded(const RowSizes& sizes) {
    if (!read_target(batch_, &first_)) return false;
    if (batch_.side(0) != sizes.rows() || first_.is_interleaved ||
        first_.row != Py_ssize_t{first_.width} * first_.item_size ||
        first_.plane < first_.height * first_.row)
      return refuse("the padded target is not (B, C, H, W) of planes in packed rows");
    for (Py_ssize_t n = 0; n < sizes.rows(); ++n) {
      Target& target = targets_.emplace_back(first_);
      target.values += n * batch_.stride(0);
      target.height = int(sizes[n][0]), target.width = int(sizes[n][1]);
      if (target.height > first_.height || target.width > first_.width)
        return refuse("a size is beyond the padded target");
    }
    return true;
  }

  bool read_flat(const RowSizes& sizes, int channels, bool is_interleaved) {
    if (channels < 1 || channels > kMaxChannels)
      return refuse("the target is not of 1 to 4 channels");
    is_interleaved = is_interleaved && channels > 1;
    const Py_ssize_t item = batch_.item_size();
    if (item != 1 && item != 2 && item != 4 && item != 8)
      return refuse("the values of the target do not have 1, 2, 4 or 8 bytes");
    Py_ssize_t begin = 0;
    for (Py_ssize_t n = 0; n < sizes.rows(); ++n) {
      const Py_ssize_t height = sizes[n][0], width = sizes[n][1];
      targets_.push_back({batch_.bytes() + begin, is_interleaved ? item : height * width * item,
                          width * item * (is_interleaved ? channels : 1), int(item), int(height),
                          int(width), channels, is_interleaved});
      begin += height * width * channels * item;
      if (begin > Py_ssize_t(batch_.size())) return refuse("the sizes are beyond the target");
    }
    first_ = targets_[0];
    return batch_.is_packed(begin / item, item) ||
           refuse("the target is not the values of all samples");
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
  bool has_windows_ = false, is_padded_ = false;
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
    output_->finish(row, slot);
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

// Whether to flip the image from left to right, and from top to bottom, (rows, 2).
class RowFlips : public RowValues<uint8_t> {
 public:
  bool open(PyObject* object) { return RowValues<uint8_t>::open(object, "the flips", 2); }
};

}  // namespace gpupipe
