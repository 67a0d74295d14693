// The function `warp_stage` of the module.
#include "output.h"
#include "rows.h"

namespace gpupipe {
namespace {

constexpr int kLine = 64;  // bytes of a line of the cache

// Bytes that a core's caches keep until the warp reads them. The rows of a larger source would push
// each other out.
constexpr int64_t kMaxFetched = 8 << 20;

// Returns the row of the source that a warp shows at a corner of the output.
double find_row(const Warp& warp, double column, double row) {
  const double* m = warp.matrix;
  return (m[3] * column + m[4] * row + m[5]) / (m[6] * column + m[7] * row + m[8]);
}

// Reads the rows of the source that a warp shows: in order, since memory answers a warp's own reads
// much more slowly.
void fetch_rows(const Warp& warp, const Target& target) {
  const Image& source = warp.source;
  double first = source.height, last = -1;
  for (int corner = 0; corner < 4; ++corner) {
    const double y = find_row(warp, corner & 1 ? target.width - 1 : 0,
                              corner & 2 ? target.height - 1 : 0);
    first = std::min(first, y), last = std::max(last, y + 1);
  }
  const int top = int(std::clamp(first, 0.0, double(source.height)));
  const int bottom = int(std::clamp(last + 1, 0.0, double(source.height)));
  const int64_t size = source.row_size();
  if ((bottom - top) * size > kMaxFetched) return;
  unsigned sum = 0;
  for (int row = top; row < bottom; ++row)
    for (int64_t n = 0; n < size; n += kLine) sum |= source.pixels[row * source.stride + n];
  asm volatile("" : : "r"(sum));  // so that the compiler keeps the reads
}

// Copies the nearest pixel of a source of uint8 to pixels of a row from `begin` to `end`; the fill
// outside.
template <int kSize>
void warp_nearest_of(const Warp& warp, int row, int begin, int end, uint8_t* to) {
  const Image& source = warp.source;
  const double* m = warp.matrix;
  for (int n = begin; n < end; ++n, to += kSize) {
    const double w = warp.is_perspective ? m[6] * n + (m[7] * row + m[8]) : 1.0;
    const double u = m[0] * n + (m[1] * row + m[2]), v = m[3] * n + (m[4] * row + m[5]);
    const double x = (warp.is_perspective ? u / w : u) + 0.5;
    const double y = (warp.is_perspective ? v / w : v) + 0.5;
    const bool is_inside = x >= 0 && y >= 0 && x < source.width && y < source.height;
    std::memcpy(to, is_inside ? source.row(int(y)) + int(x) * kSize : warp.filled, kSize);
  }
}

using WarpNearest = void (*)(const Warp&, int, int, int, uint8_t*);

WarpNearest find_nearest(int channels) {
  switch (channels) {
    case 1: return warp_nearest_of<1>;
    case 2: return warp_nearest_of<2>;
    case 3: return warp_nearest_of<3>;
    default: return warp_nearest_of<4>;
  }
}

// Warps rows of the output, of which each begins `step` bytes after the one before it.
void warp_nearest(const Warp& warp, int row, int rows, int width, uint8_t* pixels, int64_t step) {
  const int size = warp.source.channels;
  const WarpNearest run = find_nearest(size);
  for (int begin = 0; begin < width; begin += kTileWidth)
    for (int n = 0; n < rows; ++n)
      run(warp, row + n, begin, std::min(begin + kTileWidth, width),
          pixels + n * step + int64_t{begin} * size);
}

void set_matrix(const double* numbers, bool is_perspective, Warp* warp) {
  const double last[] = {0, 0, 1};
  std::copy_n(numbers, 6, warp->matrix);
  std::copy_n(is_perspective ? numbers + 6 : last, 3, warp->matrix + 6);
  warp->is_perspective = is_perspective;
  for (int n = 0; n < kBlock; ++n) {
    warp->dx[n] = to_fixed(n * numbers[0]);
    warp->dy[n] = to_fixed(n * numbers[3]);
  }
}

// The arguments are (matrices, sizes, is_nearest, fill, output). The fill is float64 (C,), or None:
// then the border is not weighed a second time.
class WarpStage : public OutputStage {
 public:
  bool read(PyObject* arguments) override {
    PyObject *matrices, *sizes, *fill, *output;
    int is_nearest;
    if (!PyArg_ParseTuple(arguments, "OOpOO", &matrices, &sizes, &is_nearest, &fill, &output))
      return false;
    is_nearest_ = is_nearest;
    return read_matrices(matrices) && sizes_.open(sizes, "the sizes") && add_rows(sizes_.rows()) &&
           read_fill(fill) && read_output(output);
  }

 protected:
  bool find_size(int row, const Image& image, int* height, int* width) const override {
    *height = int(sizes_[row][0]), *width = int(sizes_[row][1]);
    if (is_nearest_ && image.item_size != 1) return false;
    return !warp_.has_fill || (fill_.side(0) == image.channels &&
                               (image.item_size > 1 || fills_levels_));
  }

  void run_kernel(int sample, const Image& image, const Slot& slot, Arena& arena) const override {
    Warp warp = warp_;
    warp.source = image;
    set_matrix(matrices_[sample], is_perspective_, &warp);
    if (!image.is_writable) fetch_rows(warp, slot);  // what was just made is in the cache
    if (is_nearest_ || image.item_size != 1) {
      run_rows(warp, slot, arena);
      return;
    }
    const int at_once = slot.count_rows_at_once();
    Rows rows(arena, image, slot.width, at_once);
    for (int row = 0; row < slot.height; row += at_once) {
      const int count = std::min(at_once, slot.height - row);
      uint8_t* planes[kMaxChannels];
      std::copy_n(rows.planes, kMaxChannels, planes);
      for (int n = 0; n < count; ++n) {
        variant_.warp_row(warp, row + n, slot.width, planes);
        for (uint8_t*& plane : planes) plane += slot.width;
      }
      slot.write_planes(variant_, rows.planes, rows, row, count);
    }
  }

 private:
  // Runs the kernels whose rows are pixels.
  void run_rows(const Warp& warp, const Slot& slot, Arena& arena) const {
    const Rows rows(arena, warp.source, slot.width);
    const int64_t step = int64_t{slot.width} * warp.source.channels + kFloatSlack;  // values
    const int64_t size = step * warp.source.item_size;
    uint8_t* const pixels = arena.take(size_t(kTileHeight * size));
    for (int row = 0; row < slot.height; row += kTileHeight) {
      const int count = std::min(kTileHeight, slot.height - row);
      if (is_nearest_)
        warp_nearest(warp, row, count, slot.width, pixels, size);
      else
        variant_.floats->warp_rows(warp, row, count, slot.width,
                                   reinterpret_cast<float*>(pixels), step);
      for (int n = 0; n < count; ++n)
        slot.write_pixels(variant_, pixels + n * size, rows, row + n);
    }
  }

  bool read_matrices(PyObject* object) {
    Buffer shape;
    if (!shape.open(object, PyBUF_SIMPLE, "the matrices", 3)) return false;
    is_perspective_ = shape.side(1) == 3;
    if (shape.side(2) != 3 || (shape.side(1) != 2 && !is_perspective_))
      return refuse("the matrices are not (B, 2, 3) or (B, 3, 3)");
    return matrices_.open(object, "the matrices", is_perspective_ ? 9 : 6) &&
           add_rows(matrices_.rows());
  }

  // Reads the fill; without one it is 0.
  bool read_fill(PyObject* object) {
    warp_.has_fill = object != Py_None;
    if (!warp_.has_fill) return true;
    if (!fill_.open(object, PyBUF_SIMPLE, "the fill", 1)) return false;
    if (!fill_.is_packed(fill_.side(0), sizeof(double)) || fill_.side(0) < 1 ||
        fill_.side(0) > kMaxChannels)
      return refuse("the fill is not (C,) of float64, of 1 to 4 channels");
    for (Py_ssize_t c = 0; c < fill_.side(0); ++c) {
      const double value = reinterpret_cast<const double*>(fill_.bytes())[c];
      if (!std::isfinite(value)) return refuse("the fill is not finite");
      const bool is_level = value >= 0 && value <= 255;
      warp_.fill[c] = float(value);
      warp_.filled[c] = is_level ? uint8_t(std::nearbyint(value)) : 0;
      fills_levels_ = fills_levels_ && is_level;
    }
    return true;
  }

  Warp warp_ = {};  // all but the source and the matrix
  Buffer fill_;
  RowValues<double> matrices_;
  RowSizes sizes_;
  bool is_nearest_ = false, is_perspective_ = false, fills_levels_ = true;
};

}  // namespace

PyObject* warp_stage(PyObject* module, PyObject* arguments) {
  return create_stage<WarpStage>(module, arguments);
}

}  // namespace gpupipe
