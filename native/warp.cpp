// The function `prepare_warp` of the module.
#include "rows.h"
#include "task.h"

namespace gpupipe {
namespace {

constexpr int kLine = 64;                  // bytes of a line of the cache
constexpr int64_t kMostFetched = 1 << 20;  // bytes that stay in the cache for the work that follows

// Reads the rows of the source that a warp shows: in order, since memory answers a warp's own reads
// much more slowly.
void fetch_rows(const Warp& warp, const Target& target) {
  const Image& source = warp.source;
  double first = source.height, last = -1;
  for (int corner = 0; corner < 4; ++corner) {
    const double column = corner & 1 ? target.width - 1 : 0;
    const double row = corner & 2 ? target.height - 1 : 0;
    const double y = warp.matrix[3] * column + warp.matrix[4] * row + warp.matrix[5];
    first = std::min(first, y), last = std::max(last, y + 1);
  }
  const int top = int(std::clamp(first, 0.0, double(source.height)));
  const int bottom = int(std::clamp(last + 1, 0.0, double(source.height)));
  const int64_t size = int64_t{source.width} * kChannels;
  if ((bottom - top) * size > kMostFetched) return;
  unsigned sum = 0;
  for (int row = top; row < bottom; ++row)
    for (int64_t n = 0; n < size; n += kLine) sum |= source.pixels[row * source.stride + n];
  asm volatile("" : : "r"(sum));  // so that the compiler keeps the reads
}

bool read_matrix(const Buffer& matrix, Warp* warp) {
  if (!matrix.is_packed(6, sizeof(double))) return refuse("the matrix is not (2, 3) of float64");
  const double* numbers = reinterpret_cast<const double*>(matrix.bytes());
  for (int n = 0; n < 6; ++n) warp->matrix[n] = numbers[n];
  for (int n = 0; n < kBlock; ++n) {
    warp->dx[n] = to_fixed(n * numbers[0]);
    warp->dy[n] = to_fixed(n * numbers[3]);
  }
  return true;
}

// Reads the fill; without one it is 0.
bool read_fill(PyObject* object, Warp* warp) {
  Buffer fill;
  warp->has_fill = object != Py_None;
  if (warp->has_fill && !fill.open(object, PyBUF_SIMPLE, "the fill", 1)) return false;
  if (warp->has_fill && !fill.is_packed(kChannels, sizeof(double)))
    return refuse("the fill is not (3,) of float64");
  for (int c = 0; c < kChannels; ++c) {
    const double value =
        warp->has_fill ? reinterpret_cast<const double*>(fill.bytes())[c] : 0.0;
    if (!(value >= 0 && value <= 255)) return refuse("the fill is not from 0 to 255");
    warp->fill[c] = float(value);
    warp->filled[c] = uint8_t(std::nearbyint(value));
  }
  return true;
}

class WarpTask : public ImageTask {
 public:
  bool read(PyObject* arguments) override {
    PyObject *source, *matrix_object, *fill_object, *target, *table, *numbers, *before = nullptr;
    Buffer matrix;
    if (!PyArg_ParseTuple(arguments, "OOOOOO|O", &source, &matrix_object, &fill_object, &target,
                          &table, &numbers, &before) ||
        !open(source, target, table, numbers, before) ||
        !matrix.open(matrix_object, PyBUF_SIMPLE, "the matrix", 2))
      return false;
    warp_.source = image_;
    return read_matrix(matrix, &warp_) && read_fill(fill_object, &warp_);
  }

 protected:
  void run_kernel(const Variant& variant) override {
    const int most = count_rows_at_once(target_);
    Rows rows(target_.width, most);
    if (!has_before()) fetch_rows(warp_, target_);  // what was just decoded is in the cache
    for (int row = 0; row < target_.height; row += most) {
      const int count = std::min(most, target_.height - row);
      uint8_t* planes[kChannels] = {rows.planes[0], rows.planes[1], rows.planes[2]};
      for (int n = 0; n < count; ++n) {
        variant.warp_row(warp_, row + n, target_.width, planes);
        for (uint8_t*& plane : planes) plane += target_.width;
      }
      write_planes(variant, rows.planes, target_, row, count, conversions_, rows.pixels);
    }
  }

 private:
  Warp warp_;
};

}  // namespace

PyObject* prepare_warp(PyObject* module, PyObject* arguments) {
  return prepare<WarpTask>(module, arguments);
}

}  // namespace gpupipe
