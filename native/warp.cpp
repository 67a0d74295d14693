// The function `warp_stage` of the module.
#include "output.h"
#include "rows.h"

namespace gpupipe {
namespace {

constexpr int kLine = 64;  // bytes of a line of the cache

// Bytes that a core's caches keep until the warp reads them. The rows of a larger source would push
// each other out.
constexpr int64_t kMaxFetched = 1 << 20;

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
  if ((bottom - top) * size > kMaxFetched) return;
  unsigned sum = 0;
  for (int row = top; row < bottom; ++row)
    for (int64_t n = 0; n < size; n += kLine) sum |= source.pixels[row * source.stride + n];
  asm volatile("" : : "r"(sum));  // so that the compiler keeps the reads
}

void set_matrix(const double* numbers, Warp* warp) {
  for (int n = 0; n < 6; ++n) warp->matrix[n] = numbers[n];
  for (int n = 0; n < kBlock; ++n) {
    warp->dx[n] = to_fixed(n * numbers[0]);
    warp->dy[n] = to_fixed(n * numbers[3]);
  }
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

// The arguments are (matrices, sizes, fill, output). The fill is float64 (3,), or None: then the
// border is not weighed a second time.
class WarpStage : public OutputStage {
 public:
  bool read(PyObject* arguments) override {
    PyObject *matrices, *sizes, *fill, *output;
    return PyArg_ParseTuple(arguments, "OOOO", &matrices, &sizes, &fill, &output) &&
           matrices_.open(matrices, "the matrices", 6) && sizes_.open(sizes, "the sizes") &&
           add_rows(matrices_.rows()) && add_rows(sizes_.rows()) && read_fill(fill, &warp_) &&
           read_output(output);
  }

 protected:
  bool find_size(int row, const Image&, int* height, int* width) const override {
    *height = int(sizes_[row][0]), *width = int(sizes_[row][1]);
    return true;
  }

  void run_kernel(int sample, const Image& image, const Slot& slot, Arena& arena) const override {
    Warp warp = warp_;
    warp.source = image;
    set_matrix(matrices_[sample], &warp);
    const int at_once = slot.count_rows_at_once();
    Rows rows(arena, slot.width, at_once);
    if (!image.is_writable) fetch_rows(warp, slot);  // what was just made is in the cache
    for (int row = 0; row < slot.height; row += at_once) {
      const int count = std::min(at_once, slot.height - row);
      uint8_t* planes[kChannels] = {rows.planes[0], rows.planes[1], rows.planes[2]};
      for (int n = 0; n < count; ++n) {
        variant_.warp_row(warp, row + n, slot.width, planes);
        for (uint8_t*& plane : planes) plane += slot.width;
      }
      slot.write_planes(variant_, rows, row, count);
    }
  }

 private:
  Warp warp_;  // all but the source and the matrix
  RowValues<double> matrices_;
  RowSizes sizes_;
};

}  // namespace

PyObject* warp_stage(PyObject* module, PyObject* arguments) {
  return create_stage<WarpStage>(module, arguments);
}

}  // namespace gpupipe
