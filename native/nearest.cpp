// The function `nearest_stage` of the module.
#include "output.h"

#include <vector>

namespace gpupipe {
namespace {

// Returns the index of the source that torch shows at `index` of an axis that is resized with the
// interpolation "nearest": in float32, as its kernels compute it.
int64_t find_source(int64_t index, int64_t source, int64_t size) {
  const float scale = float(source) / float(size);
  return std::min(int64_t(float(index) * scale), source - 1);
}

template <int kSize>
void gather(const uint8_t* from, const std::vector<int32_t>& columns, uint8_t* to) {
  for (size_t n = 0; n < columns.size(); ++n)
    std::memcpy(to + n * kSize, from + size_t(columns[n]) * kSize, kSize);
}

// Takes pixels of a size in bytes apart from each other.
void gather_pixels(const uint8_t* from, const std::vector<int32_t>& columns, uint8_t* to,
                   int size) {
  if (size == 1) gather<1>(from, columns, to);
  if (size == 2) gather<2>(from, columns, to);
  if (size == 3) gather<3>(from, columns, to);
  if (size == 4) gather<4>(from, columns, to);
  if (size == 8) gather<8>(from, columns, to);
  if (size == 12) gather<12>(from, columns, to);
  if (size == 16) gather<16>(from, columns, to);
}

// The arguments are (sizes, windows, fill, flips, output): the size of each whole result, the
// window of it that is needed, the bytes of a pixel outside of it, and whether the window is
// flipped. Windows may be None, and so may flips.
class NearestStage : public OutputStage {
 public:
  bool read(PyObject* arguments) override {
    PyObject *sizes, *windows, *flips, *output;
    const char* bytes;
    if (!PyArg_ParseTuple(arguments, "OOy#OO", &sizes, &windows, &bytes, &fill_size_, &flips,
                          &output) ||
        !sizes_.open(sizes, "the sizes") || !add_rows(sizes_.rows()) || !read_output(output))
      return false;
    if (fill_size_ > Py_ssize_t(sizeof fill_)) return refuse("the fill is more than a pixel");
    std::memcpy(fill_, bytes, size_t(fill_size_));
    has_windows_ = windows != Py_None, has_flips_ = flips != Py_None;
    return (!has_windows_ || (windows_.open(windows, "the windows") && add_rows(windows_.rows()))) &&
           (!has_flips_ || (flips_.open(flips) && add_rows(flips_.rows())));
  }

 protected:
  bool find_size(int row, const Image& image, int* height, int* width) const override {
    const Window window = find_window(row);
    if (window.height < 1 || window.width < 1 || window.height > kMaxSide ||
        window.width > kMaxSide || (has_windows_ && !windows_.is_near(row)))
      return false;
    const bool is_inside =
        !has_windows_ || windows_.is_inside(row, sizes_[row][0], sizes_[row][1]);
    if (!is_inside && fill_size_ != image.channels * image.item_size) return false;
    *height = int(window.height), *width = int(window.width);
    return true;
  }

  void run_kernel(int row, const Image& image, const Slot& slot, Arena& arena) const override {
    const Window window = find_window(row);
    const int64_t height = sizes_[row][0], width = sizes_[row][1];
    // The columns of the window that are in the resized image.
    const int64_t begin = std::clamp<int64_t>(-window.left, 0, window.width);
    const int64_t end = std::clamp<int64_t>(width - window.left, begin, window.width);
    thread_local std::vector<int32_t> columns;
    columns.resize(size_t(end - begin));
    for (int64_t n = begin; n < end; ++n)
      columns[size_t(n - begin)] = int32_t(find_source(n + window.left, image.width, width));

    const int pixel = image.pixel_size();
    const Rows rows(arena, image, slot.width);
    const Image line = take_image(arena, 1, slot.width, image.channels, image.item_size);
    const Image filled = take_image(arena, 1, slot.width, image.channels, image.item_size);
    for (int64_t n = 0; fill_size_ == pixel && n < slot.width; ++n) {
      std::memcpy(line.pixels + n * pixel, fill_, size_t(pixel));
      std::memcpy(filled.pixels + n * pixel, fill_, size_t(pixel));
    }
    const bool flips_x = has_flips_ && flips_[row][0], flips_y = has_flips_ && flips_[row][1];
    int64_t last = -1;  // the row of the source that `line` shows
    for (int64_t n = 0; n < slot.height; ++n) {
      const int64_t at = n + window.top;
      const int to = int(flips_y ? slot.height - 1 - n : n);
      if (at < 0 || at >= height) {
        slot.write_pixels(variant_, filled.pixels, rows, to);
        continue;
      }
      const int64_t source = find_source(at, image.height, height);
      if (source != last) gather_pixels(image.row(source), columns, line.pixels + begin * pixel, pixel);
      last = source;
      slot.write_pixels(variant_, line.pixels, rows, to, flips_x);
    }
  }

 private:
  struct Window {
    int64_t top, left, height, width;
  };

  Window find_window(int row) const {
    if (!has_windows_) return {0, 0, sizes_[row][0], sizes_[row][1]};
    const int64_t* const w = windows_[row];
    return {w[0], w[1], w[2], w[3]};
  }

  RowSizes sizes_;
  RowWindows windows_;
  RowFlips flips_;
  bool has_windows_ = false, has_flips_ = false;
  uint8_t fill_[16] = {};  // the bytes of one pixel
  Py_ssize_t fill_size_ = 0;
};

}  // namespace

PyObject* nearest_stage(PyObject* module, PyObject* arguments) {
  return create_stage<NearestStage>(module, arguments);
}

}  // namespace gpupipe
