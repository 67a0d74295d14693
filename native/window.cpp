// The functions `window_stage` and `pad_stage` of the module: windows that may leave the image.
//
// Each row is made in a buffer of one row and written from there, so that no whole image waits
// between the window and the batch.
#include "output.h"

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

// The rows of a window of an image, one at a time.
class WindowRows {
 public:
  // The window is [top, left, height, width]. `fill` is the bytes of a pixel.
  WindowRows(const Image& image, const int64_t window[4], Border border, const uint8_t* fill,
             Arena& arena)
      : image_(image), top_(window[0]), left_(window[1]), border_(border) {
    const int64_t width = window[3];
    begin_ = std::max<int64_t>(-left_, 0);
    end_ = std::max(std::min(image.width - left_, width), begin_);
    is_inside_ = begin_ == 0 && end_ == width;
    if (end_ > begin_) shown_ = crop_columns(image, begin_ + left_, end_ - begin_);
    if (is_inside_ && border != Border::kFill) return;
    line_ = take_alike(arena, image, 1, int(width));
    if (border == Border::kFill) {
      filled_ = take_alike(arena, image, 1, int(width));
      for (int k = 0; k < image.pieces(); ++k) {
        fill_row(filled_.piece(k), fill + k * image.item_size);
        fill_row(line_.piece(k), fill + k * image.item_size);
      }
      return;
    }
    columns_.resize(size_t(width - (end_ - begin_)));
    for (size_t n = 0; n < columns_.size(); ++n) {
      const int64_t to = int64_t(n) < begin_ ? int64_t(n) : int64_t(n) + end_ - begin_;
      columns_[n] = {int32_t(to), int32_t(find_source(to + left_, image.width, border))};
    }
  }

  // Returns row n of the window as an image of one row, which is valid until the next call.
  Image row(int64_t n) const {
    const int64_t source = find_source(n + top_, image_.height, border_);
    if (source < 0) return filled_;
    if (!image_.is_writable) fetch_row(shown_, int(source) + kRowsAhead);
    if (is_inside_) {
      Image from = shown_;
      from.pixels = shown_.row(source), from.height = 1;
      return from;
    }
    Image from = image_;
    from.pixels = image_.row(source), from.height = 1;
    for (int k = 0; k < image_.pieces(); ++k) copy_row(from.piece(k), line_.piece(k));
    return line_;
  }

 private:
  // A column outside of the image, and that inside which it shows.
  struct Column {
    int32_t to, from;
  };

  static void fill_row(const Image& row, const uint8_t* pixel) {
    const size_t size = size_t(row.pixel_size());
    for (int64_t n = 0; n < row.width; ++n) std::memcpy(row.pixels + n * size, pixel, size);
  }

  void copy_row(const Image& from, const Image& to) const {
    const int64_t pixel = from.pixel_size();
    if (end_ > begin_)
      std::memcpy(to.pixels + begin_ * pixel, from.pixels + (begin_ + left_) * pixel,
                  size_t((end_ - begin_) * pixel));
    if (pixel == 1) copy_columns<1>(from.pixels, to.pixels);
    if (pixel == 2) copy_columns<2>(from.pixels, to.pixels);
    if (pixel == 3) copy_columns<3>(from.pixels, to.pixels);
    if (pixel == 4) copy_columns<4>(from.pixels, to.pixels);
    if (pixel == 8) copy_columns<8>(from.pixels, to.pixels);
    if (pixel == 12) copy_columns<12>(from.pixels, to.pixels);
    if (pixel == 16) copy_columns<16>(from.pixels, to.pixels);
  }

  template <int kSize>
  void copy_columns(const uint8_t* from, uint8_t* to) const {
    for (const Column& column : columns_)
      std::memcpy(to + int64_t{column.to} * kSize, from + int64_t{column.from} * kSize, kSize);
  }

  Image image_, shown_;  // the whole image, and those columns of it that are in the window
  int64_t top_, left_;
  int64_t begin_, end_;  // the columns of the window that are in the image
  bool is_inside_;       // all columns are
  Border border_;
  Image line_, filled_;  // memory of a row, and a row that is all fill
  std::vector<Column> columns_;
};

// Cuts out windows of images of any channels and item size, and flips them. Without an output it
// copies nothing if a window is inside and is not flipped.
class WindowStage : public OutputStage {
 public:
  bool takes_planes() const override { return true; }

 protected:
  // Finds [top, left, height, width] of a sample. Returns false if it cannot be done here.
  virtual bool find_window(int row, const Image& image, int64_t window[4]) const = 0;

  bool read_flips(PyObject* flips) {
    has_flips_ = flips != Py_None;
    return !has_flips_ || (flips_.open(flips) && add_rows(flips_.rows()));
  }

  bool find_size(int row, const Image& image, int* height, int* width) const override {
    int64_t w[4];
    if (!find_window(row, image, w)) return false;
    if (border_ == Border::kFill && !is_inside(w, image) &&
        fill_size_ != image.channels * image.item_size)
      return false;
    *height = int(w[2]), *width = int(w[3]);
    return true;
  }

  bool make_image(int row, Image* image, Arena& arena) const override {
    int64_t w[4];
    find_window(row, *image, w);
    if (is_inside(w, *image) && !flips(row, 0) && !flips(row, 1)) {
      image->pixels = image->row(w[0]) + w[1] * image->pixel_size();
      image->height = int(w[2]), image->width = int(w[3]);
      return true;
    }
    const Image result = take_alike(arena, *image, int(w[2]), int(w[3]));
    for (int n = 0; n < image->pieces(); ++n)
      write(row, image->piece(n), fill_ + n * image->item_size, Slot(result.piece(n)), arena);
    *image = result;
    return true;
  }

  void run_kernel(int row, const Image& image, const Slot& slot, Arena& arena) const override {
    write(row, image, fill_, slot, arena);
  }

  static bool is_size(int64_t height, int64_t width) {
    return height >= 1 && width >= 1 && height <= kMaxSide && width <= kMaxSide;
  }

  Border border_ = Border::kFill;
  uint8_t fill_[16] = {};  // the bytes of one pixel
  Py_ssize_t fill_size_ = 0;

 private:
  static bool is_inside(const int64_t w[4], const Image& image) {
    return w[0] >= 0 && w[1] >= 0 && w[0] + w[2] <= image.height && w[1] + w[3] <= image.width;
  }

  bool flips(int row, int axis) const { return has_flips_ && flips_[row][axis]; }

  void write(int row, const Image& image, const uint8_t* fill, const Slot& slot,
             Arena& arena) const {
    int64_t w[4];
    find_window(row, image, w);
    const WindowRows window(image, w, border_, fill, arena);
    const Rows rows(arena, image, slot.width);
    for (int n = 0; n < slot.height; ++n)
      slot.write_row(variant_, window.row(n), rows, flips(row, 1) ? slot.height - 1 - n : n,
                     flips(row, 0));
  }

  RowFlips flips_;
  bool has_flips_ = false;
};

// The arguments are (windows, fill, flips, output). `fill` is the bytes of a pixel. Flips may be
// None.
class FilledWindowStage : public WindowStage {
 public:
  bool read(PyObject* arguments) override {
    PyObject *windows, *flips, *output;
    const char* bytes;
    if (!PyArg_ParseTuple(arguments, "Oy#OO", &windows, &bytes, &fill_size_, &flips, &output) ||
        !windows_.open(windows, "the windows") || !add_rows(windows_.rows()) ||
        !read_flips(flips) || !read_output(output))
      return false;
    if (fill_size_ > Py_ssize_t(sizeof fill_)) return refuse("the fill is more than a pixel");
    std::memcpy(fill_, bytes, size_t(fill_size_));
    return true;
  }

 protected:
  bool find_window(int row, const Image&, int64_t window[4]) const override {
    std::copy_n(windows_[row], 4, window);
    return is_size(window[2], window[3]) && windows_.is_near(row);
  }

 private:
  RowWindows windows_;
};

// The arguments are (borders, mode, flips, output). Flips may be None.
class PadStage : public WindowStage {
 public:
  bool read(PyObject* arguments) override {
    PyObject *borders, *flips, *output;
    const char* mode;
    if (!PyArg_ParseTuple(arguments, "OsOO", &borders, &mode, &flips, &output) ||
        !borders_.open(borders, "the borders", 4) || !add_rows(borders_.rows()) ||
        !read_flips(flips) || !read_output(output))
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
