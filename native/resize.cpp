// The function `resize_stage` of the module.
//
// Rows of the source are resized in pairs to rows of pairs, which wait in a ring until the rows of
// the output that need them are made. So all of it stays in the cache of the first level.
#include <algorithm>

#include "output.h"
#include "taps.h"

namespace gpupipe {
namespace {

constexpr size_t kLine = 64;  // bytes of a cache line

struct Resize {
  Image source;
  Resampling rows, columns;
  int top, left, height, width;  // the window of the resized image
  bool flips_x, flips_y;
};

// What a thread keeps from one resize to the next: the weights of the last sizes, and memory.
class Resizer {
 public:
  void run(const Variant& variant, const Resize& resize, const Slot& slot, Rows& rows) {
    prepare(variant, resize);
    const Image read = find_columns(resize.source);
    int next = 0;  // the pair of rows that is resized next
    for (int n = 0; n < resize.height; ++n) {
      const int from = rows_.first[n] + rows_.phase;
      const int first = from / 2, end = (from + rows_.sizes[n] + 1) / 2;
      for (next = std::max(next, first); next < end; ++next) {
        // What was just made is in the cache. A processor has few fetches at once: of one row here,
        // and of one below.
        if (!read.is_writable) fetch_row(read, 2 * next + kRowsAhead);
        resize_pair(variant, resize, next);
        if (!read.is_writable) fetch_row(read, 2 * next + 1 + kRowsAhead);
      }
      for (int k = first; k < end; ++k) blended_[k - first] = find_pair(k);
      variant.blend_rows(blended_.data(), rows_.weights.data() + size_t(n) * rows_.max_size,
                         end - first, rows_.precision, resize.width * columns_.channels,
                         levels_.data());
      const int row = resize.flips_y ? resize.height - 1 - n : n;
      slot.write_pixels(variant, levels_.data(), rows, row);
    }
  }

 private:
  void prepare(const Variant& variant, const Resize& r) {
    const Key columns = {&variant, r.columns, r.left, r.width, r.source.channels, r.flips_x};
    if (!(columns == columns_key_)) {
      columns_key_ = {};
      columns_.taps = compute_taps(r.columns, r.left, r.width, false);
      if (r.flips_x) reverse_taps(columns_.taps);
      columns_.width = r.source.width, columns_.channels = r.source.channels;
      variant.prepare_columns(columns_);
      columns_key_ = columns;
    }
    const Key rows = {nullptr, r.rows, r.top, r.height, 0, false};
    if (!(rows == rows_key_)) {
      rows_key_ = {};
      rows_ = compute_taps(r.rows, r.top, r.height, true);
      rows_key_ = rows;
    }
    size_ = (size_t(r.width) * size_t(columns_.channels) / kGroup + 2) * kGroup;
    capacity_ = rows_.max_size / 2;
    const size_t values = 2 * size_ * capacity_ + kLine;
    if (ring_.size() < values) ring_.resize(values);
    if (levels_.size() < size_) levels_.resize(size_);
    if (blended_.size() < size_t(capacity_)) blended_.resize(capacity_);
    copies_[0].resize(size_t(r.source.row_size()) + kMaxRead);
    copies_[1].resize(copies_[0].size());
  }

  // Returns the columns of the source that are read.
  Image find_columns(const Image& source) const {
    const Taps& taps = columns_.taps;
    const auto [least, greatest] = std::minmax_element(taps.first.begin(), taps.first.end());
    const int end = std::min(*greatest + taps.max_size, source.width);
    return crop_columns(source, *least, end - *least);
  }

  // Returns a row of the ring, which begins at a cache line: vectors across two are slower.
  uint16_t* find_pair(int pair) {
    const uintptr_t begin = reinterpret_cast<uintptr_t>(ring_.data());
    auto* const ring = reinterpret_cast<uint16_t*>((begin + kLine - 1) / kLine * kLine);
    return ring + 2 * size_ * size_t(pair % capacity_);
  }

  void resize_pair(const Variant& variant, const Resize& resize, int pair) {
    const int first = 2 * pair - rows_.phase, last = resize.source.height - 1;
    variant.resize_columns(columns_, find_row(resize.source, std::max(first, 0), 0),
                           find_row(resize.source, std::min(first + 1, last), 1),
                           find_pair(pair));
  }

  // Returns a row; a copy of it if what a variant may read is not all in the image.
  const uint8_t* find_row(const Image& source, int row, int copy) {
    const uint8_t* pixels = source.pixels + row * source.stride;
    const int64_t bytes = source.row_size();
    if (row * source.stride + bytes + kMaxRead <= source.size()) return pixels;
    std::copy(pixels, pixels + bytes, copies_[copy].begin());
    return copies_[copy].data();
  }

  struct Key {
    const Variant* variant = nullptr;
    Resampling how = {};
    int begin = 0, count = 0, channels = 0;
    bool is_reversed = false;

    bool operator==(const Key& other) const {
      return variant == other.variant && how == other.how && begin == other.begin &&
             count == other.count && channels == other.channels &&
             is_reversed == other.is_reversed;
    }
  };

  Key columns_key_, rows_key_;
  Columns columns_;
  Taps rows_;
  size_t size_ = 0;  // pairs in a row of the ring, with kGroup more at least
  int capacity_ = 0;
  std::vector<uint16_t> ring_;
  std::vector<uint8_t> levels_, copies_[2];
  std::vector<const uint16_t*> blended_;
};

// Resizes floats: each row of the output sums rows of the source, of which it resizes the sum.
void resize_floats(const FloatVariant& floats, const Resize& r, const Slot& slot,
                   const Variant& variant, const Rows& rows, Arena& arena) {
  FloatTaps columns = compute_float_taps(r.columns, r.left, r.width);
  if (r.flips_x) reverse_taps(columns);
  const FloatTaps lines = compute_float_taps(r.rows, r.top, r.height);
  const int channels = r.source.channels;
  // The columns that are needed, from `begin` to `end`.
  const auto [least, greatest] = std::minmax_element(columns.first.begin(), columns.first.end());
  const int begin = *least, end = *greatest + columns.size;
  for (int32_t& first : columns.first) first -= begin;
  const auto take = [&](int width) {
    const size_t values = size_t(width) * size_t(channels) + kFloatSlack;
    return reinterpret_cast<float*>(arena.take(values * sizeof(float)));
  };
  float *const sums = take(end - begin), *const pixels = take(r.width);
  std::vector<const float*> sources(size_t(lines.size));
  const Image read = crop_columns(r.source, begin, end - begin);
  int fetched = 0;
  for (int n = 0; n < r.height; ++n) {
    // Without antialiasing, rows between those of two outputs are not read.
    fetched = std::max(fetched, lines.first[n]);
    for (; fetched < lines.first[n] + lines.size + kRowsAhead / 4; ++fetched)
      fetch_row(read, fetched);
    for (int k = 0; k < lines.size; ++k)
      sources[k] = reinterpret_cast<const float*>(read.row(lines.first[n] + k));
    floats.blend_rows(sources.data(), lines.weights.data() + size_t(n) * lines.size, lines.size,
                      int64_t{end - begin} * channels, sums);
    floats.resize_columns(columns, sums, channels, pixels);
    slot.write_pixels(variant, reinterpret_cast<const uint8_t*>(pixels), rows,
                      r.flips_y ? r.height - 1 - n : n);
  }
}

// The arguments are (sizes, windows, flips, is_cubic, antialias, output): the size of each whole
// result, the window of it that is needed, and whether the window is flipped. Windows may be None,
// and so may flips.
class ResizeStage : public OutputStage {
 public:
  bool read(PyObject* arguments) override {
    PyObject *sizes, *windows, *flips, *output;
    int is_cubic, antialias;
    if (!PyArg_ParseTuple(arguments, "OOOppO", &sizes, &windows, &flips, &is_cubic, &antialias,
                          &output) ||
        !sizes_.open(sizes, "the sizes") || !add_rows(sizes_.rows()) || !read_output(output))
      return false;
    has_windows_ = windows != Py_None, has_flips_ = flips != Py_None;
    if ((has_windows_ && (!windows_.open(windows, "the windows") || !add_rows(windows_.rows()))) ||
        (has_flips_ && (!flips_.open(flips) || !add_rows(flips_.rows()))))
      return false;
    for (int row = 0; has_windows_ && row < rows(); ++row)
      if (!windows_.is_inside(row, sizes_[row][0], sizes_[row][1]))
        return refuse("a window is not inside the resized image");
    is_cubic_ = is_cubic, antialias_ = antialias;
    return true;
  }

 protected:
  bool find_size(int row, const Image&, int* height, int* width) const override {
    const int64_t* const size = has_windows_ ? windows_[row] + 2 : sizes_[row];
    *height = int(size[0]), *width = int(size[1]);
    return true;
  }

  void run_kernel(int row, const Image& image, const Slot& slot, Arena& arena) const override {
    thread_local Resizer resizer;
    Resize resize;
    resize.source = image;
    resize.rows = {image.height, int(sizes_[row][0]), is_cubic_, antialias_};
    resize.columns = {image.width, int(sizes_[row][1]), is_cubic_, antialias_};
    resize.top = resize.left = 0;
    if (has_windows_) resize.top = int(windows_[row][0]), resize.left = int(windows_[row][1]);
    resize.height = slot.height, resize.width = slot.width;
    resize.flips_x = has_flips_ && flips_[row][0], resize.flips_y = has_flips_ && flips_[row][1];
    Rows rows(arena, image, slot.width);
    if (image.item_size != 1)
      resize_floats(*variant_.floats, resize, slot, variant_, rows, arena);
    else
      resizer.run(variant_, resize, slot, rows);
  }

 private:
  RowSizes sizes_;
  RowWindows windows_;
  RowFlips flips_;
  bool has_windows_ = false, has_flips_ = false, is_cubic_ = false, antialias_ = false;
};

}  // namespace

PyObject* resize_stage(PyObject* module, PyObject* arguments) {
  return create_stage<ResizeStage>(module, arguments);
}

}  // namespace gpupipe
