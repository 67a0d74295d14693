// The functions `deliver_any_stage`, `flip_stage` and `channels_stage` of the module: images that
// are not RGB in uint8.
#include <vector>

#include "any_channels.h"
#include "output.h"

namespace gpupipe {
namespace {

constexpr int kMaxChannels = 4;

// Writes images of 1 to 4 channels, uint8 or float32, to a batch (B, C, H, W) of any order of axes.
//
// The arguments are (flips, (batch, table, factors, windows, value)). Of uint8, new values come
// from `table` (C, 256), or stay if it is None; `factors`, (3, C), make the same values. Of
// float32, values become (value - mean) / std with `factors`, or stay if they are None.
class DeliverAnyStage : public Stage {
 public:
  bool read(PyObject* arguments) override {
    PyObject *flips, *output, *batch, *table, *factors, *windows = Py_None, *value = Py_None;
    if (!PyArg_ParseTuple(arguments, "OO!", &flips, &PyTuple_Type, &output) ||
        !PyArg_ParseTuple(output, "OOO|OO", &batch, &table, &factors, &windows, &value) ||
        !batch_.open(batch, PyBUF_WRITABLE, "the target", 4))
      return false;
    channels_ = int(batch_.side(1)), item_size_ = int(batch_.item_size());
    if (channels_ < 1 || channels_ > kMaxChannels || batch_.side(2) < 1 || batch_.side(3) < 1 ||
        batch_.side(2) > kMaxSide || batch_.side(3) > kMaxSide || item_size_ > 8)
      return refuse("the target is not (B, C, H, W) of 1 to 4 channels");
    for (int axis = 0; axis < 4; ++axis)
      if (batch_.stride(axis) % item_size_) return refuse("the target is not aligned");
    is_planar_ = batch_.stride(3) == item_size_;
    has_flips_ = flips != Py_None, has_table_ = table != Py_None;
    has_factors_ = factors != Py_None, has_windows_ = windows != Py_None;
    if (has_flips_ && !(flips_.open(flips) && add_rows(flips_.rows()))) return false;
    if (has_table_ && !(table_.open(table, PyBUF_SIMPLE, "the table", 2) &&
                        table_.is_packed(channels_ * 256, item_size_)))
      return PyErr_Occurred() ? false : refuse("the table is not (C, 256) of the target's dtype");
    if (has_factors_ && !factors_.open(factors, "the factors", channels_)) return false;
    if (has_factors_ && factors_.rows() != 3) return refuse("the factors are not (3, C)");
    if (has_windows_ && !(windows_.open(windows, "the windows to erase") &&
                          value_.open(value, PyBUF_STRIDES) && add_rows(windows_.rows())))
      return false;
    if (has_windows_ && !value_.is_packed(channels_, item_size_))
      return refuse("the value to erase with is not (C,) of the target's dtype");
    for (int c = 0; c < channels_; ++c) conversions_[c] = create_conversion(c);
    return add_rows(batch_.side(0));
  }

  bool run(int row, Image* image, Arena& arena) const override {
    if (image->channels != channels_ || image->height != batch_.side(2) ||
        image->width != batch_.side(3))
      return false;
    const bool is_float = image->item_size == 4;
    if (is_float ? has_table_ || item_size_ != 4 : !has_table_ && item_size_ != 1) return false;
    const bool flips_x = has_flips_ && flips_[row][0], flips_y = has_flips_ && flips_[row][1];
    const int width = image->width;
    uint8_t* planes[kMaxChannels];
    for (int c = 0; c < channels_; ++c)
      planes[c] = arena.take(size_t(width) * size_t(image->item_size));
    uint8_t* const converted = arena.take(size_t(width) * size_t(item_size_));
    const bool is_copy = !has_table_ && !has_factors_ && is_packed(*image);
    for (int n = 0; n < image->height; ++n) {
      const uint8_t* const from = image->row(flips_y ? image->height - 1 - n : n);
      uint8_t* const to = batch_.bytes() + row * batch_.stride(0) + n * batch_.stride(2);
      if (is_copy) {
        flips_x ? reverse_any(from, to, image->pixel_size(), width)
                : void(std::memcpy(to, from, size_t(image->row_size())));
        continue;
      }
      is_float ? split_any<uint32_t>(from, planes, channels_, width, flips_x)
               : split_any<uint8_t>(from, planes, channels_, width, flips_x);
      for (int c = 0; c < channels_; ++c) {
        uint8_t* const plane = to + c * batch_.stride(1);
        uint8_t* const values = is_planar_ ? plane : converted;
        is_float ? convert_floats(planes[c], values, c, width)
                 : variant_.convert(planes[c], values, width, conversions_[c]);
        if (!is_planar_) scatter(values, plane, width);
      }
    }
    order_stores();
    if (has_windows_) erase(row);
    return true;
  }

 private:
  // Whether the channels of the target lie as those of the image, so that rows can be copied.
  bool is_packed(const Image& image) const {
    return item_size_ == image.item_size &&
           (channels_ == 1 || batch_.stride(1) == item_size_) &&
           (image.width == 1 || batch_.stride(3) == channels_ * item_size_);
  }

  Conversion create_conversion(int c) const {
    Conversion part = {{}, item_size_, 1, !has_table_, false, true, {}, {}, {}};
    if (!has_table_) return part;
    for (const uint8_t*& table : part.table) table = table_.bytes() + c * 256 * item_size_;
    part.is_linear = has_factors_ && (item_size_ == 2 || item_size_ == 4);
    for (int n = 0; part.is_linear && n < kFactors; ++n)
      part.scale[n] = factors_[0][c], part.mean[n] = factors_[1][c], part.std[n] = factors_[2][c];
    part.is_scaling = part.mean[0] == 0 && part.std[0] == 1;
    return part;
  }

  void convert_floats(const uint8_t* from, uint8_t* to, int c, int width) const {
    const float* const a = reinterpret_cast<const float*>(from);
    float* const b = reinterpret_cast<float*>(to);
    if (!has_factors_) {
      std::memcpy(to, from, size_t(width) * sizeof(float));
      return;
    }
    const float mean = factors_[1][c], std = factors_[2][c];
    for (int n = 0; n < width; ++n) b[n] = (a[n] - mean) / std;
  }

  void scatter(const uint8_t* values, uint8_t* to, int width) const {
    const Py_ssize_t step = batch_.stride(3);
    for (int n = 0; n < width; ++n)
      std::memcpy(to + n * step, values + n * item_size_, size_t(item_size_));
  }

  void erase(int row) const {
    const int64_t* w = windows_[row];
    const int64_t top = std::clamp<int64_t>(w[0], 0, batch_.side(2));
    const int64_t left = std::clamp<int64_t>(w[1], 0, batch_.side(3));
    const int64_t bottom = std::clamp<int64_t>(w[0] + w[2], top, batch_.side(2));
    const int64_t right = std::clamp<int64_t>(w[1] + w[3], left, batch_.side(3));
    for (int c = 0; c < channels_; ++c)
      for (int64_t y = top; y < bottom; ++y)
        for (int64_t x = left; x < right; ++x)
          std::memcpy(batch_.bytes() + row * batch_.stride(0) + c * batch_.stride(1) +
                          y * batch_.stride(2) + x * batch_.stride(3),
                      value_.bytes() + c * item_size_, size_t(item_size_));
  }

  Buffer batch_, table_, value_;
  RowValues<float> factors_;
  RowFlips flips_;
  RowWindows windows_;
  Conversion conversions_[kMaxChannels];
  int channels_ = 0, item_size_ = 0;
  bool is_planar_ = false, has_flips_ = false, has_table_ = false, has_factors_ = false,
       has_windows_ = false;
  const Variant& variant_ = *g_variant;
};

// Flips images of any channels and item size. The argument is the flips.
class FlipStage : public Stage {
 public:
  bool read(PyObject* arguments) override {
    PyObject* flips;
    return PyArg_ParseTuple(arguments, "O", &flips) && flips_.open(flips) &&
           add_rows(flips_.rows());
  }

  bool run(int row, Image* image, Arena& arena) const override {
    if (!image->channels) return false;
    const bool flips_x = flips_[row][0], flips_y = flips_[row][1];
    if (!flips_x && !flips_y) return true;
    const Image result =
        take_image(arena, image->height, image->width, image->channels, image->item_size);
    for (int n = 0; n < image->height; ++n) {
      const uint8_t* const from = image->row(flips_y ? image->height - 1 - n : n);
      flips_x ? reverse_any(from, result.row(n), image->pixel_size(), image->width)
              : void(std::memcpy(result.row(n), from, size_t(image->row_size())));
    }
    *image = result;
    return true;
  }

 private:
  RowFlips flips_;
};

// Runs stages for RGB on images of uint8 with other numbers of channels: the first stage on the
// first three channels, the second on those after them. Missing channels repeat the last.
class ChannelsStage : public Stage {
 public:
  bool read(PyObject* arguments) override {
    PyObject* stages;
    if (!PyArg_ParseTuple(arguments, "O!", &PyTuple_Type, &stages) || !read_parts(stages, &parts_))
      return false;
    return !parts_.empty() || refuse("there is no stage");
  }

  bool run(int row, Image* image, Arena& arena) const override {
    const int channels = image->channels;
    if (image->item_size != 1 || !channels || int(parts_.size()) != (channels + 2) / kChannels)
      return false;
    std::vector<Image> results(parts_.size());
    for (size_t k = 0; k < parts_.size(); ++k) {
      results[k] = take_image(arena, image->height, image->width, kChannels);
      for (int n = 0; n < image->height; ++n)
        pick_channels(image->row(n), channels, int(k) * kChannels, results[k].row(n), image->width);
      if (!parts_[k]->run(row, &results[k], arena)) return false;
    }
    *image = take_image(arena, results[0].height, results[0].width, channels);
    for (size_t k = 0; k < parts_.size(); ++k)
      for (int n = 0; n < image->height; ++n)
        put_channels(results[k].row(n), image->row(n), channels, int(k) * kChannels, image->width);
    return true;
  }

  bool can_run(int row) const override {
    for (const InnerStage& part : parts_)
      if (!part->can_run(row)) return false;
    return true;
  }

 private:
  std::vector<InnerStage> parts_;
};

}  // namespace

PyObject* deliver_any_stage(PyObject* module, PyObject* arguments) {
  return create_stage<DeliverAnyStage>(module, arguments);
}

PyObject* flip_stage(PyObject* module, PyObject* arguments) {
  return create_stage<FlipStage>(module, arguments);
}

PyObject* channels_stage(PyObject* module, PyObject* arguments) {
  return create_stage<ChannelsStage>(module, arguments);
}

}  // namespace gpupipe
