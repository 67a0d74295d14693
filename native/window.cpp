// The functions `window_stage` and `pad_stage` of the module: windows that may leave the image.
#include "stage.h"

#include <vector>

namespace gpupipe {
namespace {

enum class Border { kFill, kEdge, kReflect, kSymmetric };

// Returns the index inside an axis of `size` that a border shows at `index`; -1 for the fill.
int64_t find_source(int64_t index, int64_t size, Border border) {
  if (index >= 0 && index < size) return index;
  if (border == Border::kFill) return -1;
  if (border == Border::kEdge || size == 1) return index < 0 ? 0 : size - 1;
  const int64_t period = border == Border::kReflect ? 2 * size - 2 : 2 * size;
  const int64_t place = (index % period + period) % period;
  return place < size ? place : (border == Border::kReflect ? period : period - 1) - place;
}

// Cuts out windows of images of any channels and item size. Copies nothing if a window is inside.
class WindowStage : public Stage {
 public:
  bool takes_planes() const override { return true; }

  bool run(int row, Image* image, Arena& arena) const override {
    int64_t w[4];
    if (!image->channels || !find_window(row, *image, w)) return false;
    if (w[0] >= 0 && w[1] >= 0 && w[0] + w[2] <= image->height && w[1] + w[3] <= image->width) {
      image->pixels = image->row(w[0]) + w[1] * image->pixel_size();
      image->height = int(w[2]), image->width = int(w[3]);
      return true;
    }
    if (border_ == Border::kFill && fill_size_ != image->channels * image->item_size) return false;
    const Image result = take_alike(arena, *image, int(w[2]), int(w[3]));
    for (int n = 0; n < image->pieces(); ++n)
      cut(image->piece(n), w, fill_ + n * image->item_size, result.piece(n));
    *image = result;
    return true;
  }

 protected:
  // Finds [top, left, height, width] of a sample. Returns false if it cannot be done here.
  virtual bool find_window(int row, const Image& image, int64_t window[4]) const = 0;

  static bool is_size(int64_t height, int64_t width) {
    return height >= 1 && width >= 1 && height <= kMaxSide && width <= kMaxSide;
  }

  Border border_ = Border::kFill;
  uint8_t fill_[16];  // the bytes of one pixel
  Py_ssize_t fill_size_ = 0;

 private:
  void cut(const Image& image, const int64_t w[4], const uint8_t* fill, const Image& result) const {
    const int pixel = image.pixel_size();
    // Columns from `begin` to `end` of the result are in the image.
    const int64_t begin = std::min(std::max<int64_t>(-w[1], 0), w[3]);
    const int64_t end = std::max(std::min(image.width - w[1], w[3]), begin);
    std::vector<int64_t> sources(size_t(w[3] - (end - begin)));
    for (size_t n = 0; n < sources.size(); ++n) {
      const int64_t column = int64_t(n) < begin ? int64_t(n) : int64_t(n) + end - begin;
      sources[n] = find_source(column + w[1], image.width, border_);
    }
    const uint8_t* filled = nullptr;  // a row of the result that is all fill
    for (int64_t n = 0; n < w[2]; ++n) {
      uint8_t* const to = result.row(n);
      const int64_t source = find_source(n + w[0], image.height, border_);
      if (source < 0 && filled) {
        std::memcpy(to, filled, size_t(result.row_size()));
        continue;
      }
      const uint8_t* const from = source < 0 ? nullptr : image.row(source);
      if (source < 0) filled = to;
      for (size_t k = 0; k < sources.size(); ++k) {
        const int64_t column = int64_t(k) < begin ? int64_t(k) : int64_t(k) + end - begin;
        const bool is_fill = !from || sources[k] < 0;
        copy_pixel(to + column * pixel, is_fill ? fill : from + sources[k] * pixel, pixel);
      }
      if (from) {
        std::memcpy(to + begin * pixel, from + (begin + w[1]) * pixel,
                    size_t(end - begin) * size_t(pixel));
      } else {
        for (int64_t column = begin; column < end; ++column)
          copy_pixel(to + column * pixel, fill, pixel);
      }
    }
  }

  static void copy_pixel(uint8_t* to, const uint8_t* from, int size) {
    for (int n = 0; n < size; ++n) to[n] = from[n];
  }
};

// The arguments are (windows, fill): the bytes of a pixel.
class FilledWindowStage : public WindowStage {
 public:
  bool read(PyObject* arguments) override {
    PyObject* windows;
    const char* bytes;
    if (!PyArg_ParseTuple(arguments, "Oy#", &windows, &bytes, &fill_size_) ||
        !windows_.open(windows, "the windows") || !add_rows(windows_.rows()))
      return false;
    if (fill_size_ > Py_ssize_t(sizeof fill_)) return refuse("the fill is more than a pixel");
    std::memcpy(fill_, bytes, size_t(fill_size_));
    return true;
  }

 protected:
  bool find_window(int row, const Image&, int64_t window[4]) const override {
    std::copy_n(windows_[row], 4, window);
    const int64_t far = int64_t{1} << 40;
    return is_size(window[2], window[3]) && std::abs(window[0]) < far && std::abs(window[1]) < far;
  }

 private:
  RowWindows windows_;
};

// The arguments are (borders, mode).
class PadStage : public WindowStage {
 public:
  bool read(PyObject* arguments) override {
    PyObject* borders;
    const char* mode;
    if (!PyArg_ParseTuple(arguments, "Os", &borders, &mode) ||
        !borders_.open(borders, "the borders", 4) || !add_rows(borders_.rows()))
      return false;
    const char* const names[] = {"edge", "reflect", "symmetric"};
    const Border modes[] = {Border::kEdge, Border::kReflect, Border::kSymmetric};
    for (int n = 0; n < 3; ++n) {
      if (std::strcmp(mode, names[n]) != 0) continue;
      border_ = modes[n];
      return true;
    }
    return refuse("the mode is not edge, reflect or symmetric");
  }

 protected:
  bool find_window(int row, const Image& image, int64_t window[4]) const override {
    const int64_t* b = borders_[row];
    for (int n = 0; n < 4; ++n)
      if (b[n] < 0 || b[n] > kMaxSide) return false;
    window[0] = -b[0], window[1] = -b[1];
    window[2] = image.height + b[0] + b[2], window[3] = image.width + b[1] + b[3];
    return is_size(window[2], window[3]);
  }

 private:
  RowValues<int64_t> borders_;  // [top, left, bottom, right]
};

}  // namespace

PyObject* window_stage(PyObject* module, PyObject* arguments) {
  return create_stage<FilledWindowStage>(module, arguments);
}

PyObject* pad_stage(PyObject* module, PyObject* arguments) {
  return create_stage<PadStage>(module, arguments);
}

}  // namespace gpupipe
