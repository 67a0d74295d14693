// The function `prepare_resize` of the module.
//
// Rows of the source are resized in pairs to rows of pairs, which wait in a ring until the rows of
// the output that need them are made. So all of it stays in the cache of the first level.
#include <algorithm>

#include "kernel_task.h"
#include "taps.h"

namespace gpupipe {
namespace {

struct Resize {
  Image source;
  Resampling rows, columns;
  int top, left, height, width;  // the window of the resized image
  bool flips_x, flips_y;
};

// What a thread keeps from one resize to the next: the weights of the last sizes, and memory.
class Resizer {
 public:
  void run(const Variant& variant, const Resize& resize, const Output& output, Rows& rows) {
    prepare(variant, resize);
    int next = rows_.first[0] / 2;  // the pair of rows that is resized next
    for (int n = 0; n < resize.height; ++n) {
      const int first = rows_.first[n] / 2, end = (rows_.first[n] + rows_.sizes[n] + 1) / 2;
      for (next = std::max(next, first); next < end; ++next) resize_pair(variant, resize, next);
      for (int k = first; k < end; ++k) blended_[k - first] = find_pair(k);
      variant.blend_rows(blended_.data(), rows_.weights.data() + size_t(n) * rows_.max_size,
                         end - first, rows_.precision, resize.width * kChannels, levels_.data());
      const int row = resize.flips_y ? resize.height - 1 - n : n;
      output.write_levels(variant, levels_.data(), row, rows);
    }
  }

 private:
  void prepare(const Variant& variant, const Resize& r) {
    const Key columns = {&variant, r.columns, r.left, r.width, r.flips_x};
    if (!(columns == columns_key_)) {
      columns_key_ = {};
      columns_.taps = compute_taps(r.columns, r.left, r.width, 1);
      if (r.flips_x) reverse_taps(columns_.taps);
      columns_.width = r.source.width;
      variant.prepare_columns(columns_);
      columns_key_ = columns;
    }
    const Key rows = {nullptr, r.rows, r.top, r.height, false};
    if (!(rows == rows_key_)) {
      rows_key_ = {};
      rows_ = compute_taps(r.rows, r.top, r.height, 2);
      rows_key_ = rows;
    }
    size_ = size_t(r.width) * kChannels + kGroup;
    capacity_ = rows_.max_size / 2 + 1;
    if (ring_.size() < 2 * size_ * capacity_) ring_.resize(2 * size_ * capacity_);
    if (levels_.size() < size_) levels_.resize(size_);
    if (blended_.size() < size_t(capacity_)) blended_.resize(capacity_);
    copies_[0].resize(size_t(r.source.width) * kChannels + kMaxRead);
    copies_[1].resize(copies_[0].size());
  }

  uint16_t* find_pair(int pair) { return ring_.data() + 2 * size_ * size_t(pair % capacity_); }

  void resize_pair(const Variant& variant, const Resize& resize, int pair) {
    const int last = resize.source.height - 1;
    variant.resize_columns(columns_, find_row(resize.source, 2 * pair, 0),
                           find_row(resize.source, std::min(2 * pair + 1, last), 1),
                           find_pair(pair));
  }

  // Returns a row; a copy of it if what a variant may read is not all in the image.
  const uint8_t* find_row(const Image& source, int row, int copy) {
    const uint8_t* pixels = source.pixels + row * source.stride;
    const int64_t bytes = int64_t{source.width} * kChannels;
    if (row * source.stride + bytes + kMaxRead <= source.size()) return pixels;
    std::copy(pixels, pixels + bytes, copies_[copy].begin());
    return copies_[copy].data();
  }

  struct Key {
    const Variant* variant = nullptr;
    Resampling how = {};
    int begin = 0, count = 0;
    bool is_reversed = false;

    bool operator==(const Key& other) const {
      return variant == other.variant && how == other.how && begin == other.begin &&
             count == other.count && is_reversed == other.is_reversed;
    }
  };

  Key columns_key_, rows_key_;
  Columns columns_;
  Taps rows_;
  size_t size_ = 0;  // pairs in a row of the ring
  int capacity_ = 0;
  std::vector<uint16_t> ring_;
  std::vector<uint8_t> levels_, copies_[2];
  std::vector<const uint16_t*> blended_;
};

bool is_inside(int begin, int count, int size) { return begin >= 0 && begin <= size - count; }

// The options that Python passes, in this order: the size of the whole result, the corner of the
// window in it, and flags.
struct Options {
  int height, width, top, left, is_cubic, antialias, flips_x, flips_y;

  bool read(PyObject* tuple) {
    return PyArg_ParseTuple(tuple, "iiiipppp", &height, &width, &top, &left, &is_cubic, &antialias,
                            &flips_x, &flips_y);
  }
};

class ResizeTask : public ImageTask {
 protected:
  bool read_options(PyObject* tuple) override {
    Options options;
    if (!options.read(tuple)) return false;
    if (options.height < 1 || options.width < 1 || options.height > kMaxSide ||
        options.width > kMaxSide)
      return refuse("the size is empty or too large");
    if (!is_inside(options.top, output_.height, options.height) ||
        !is_inside(options.left, output_.width, options.width))
      return refuse("the target is not inside the resized image");
    const bool is_cubic = options.is_cubic, antialias = options.antialias;
    resize_.source = image_;
    resize_.rows = {image_.height, options.height, is_cubic, antialias};
    resize_.columns = {image_.width, options.width, is_cubic, antialias};
    resize_.top = options.top, resize_.left = options.left;
    resize_.height = output_.height, resize_.width = output_.width;
    resize_.flips_x = options.flips_x, resize_.flips_y = options.flips_y;
    return true;
  }

  void run_kernel(const Variant& variant) override {
    thread_local Resizer resizer;
    Rows rows(output_.width, 1);
    resizer.run(variant, resize_, output_, rows);
  }

 private:
  Resize resize_;
};

}  // namespace

PyObject* prepare_resize(PyObject* module, PyObject* arguments) {
  return prepare<ResizeTask>(module, arguments);
}

}  // namespace gpupipe
