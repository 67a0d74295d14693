// The functions `deliver_stage` and `convert_planes` of the module.
#include "color.h"
#include "output.h"

namespace gpupipe {
namespace {

// The arguments are (flips, output); flips may be None.
class DeliverStage : public OutputStage {
 public:
  bool read(PyObject* arguments) override {
    PyObject *flips, *output;
    if (!PyArg_ParseTuple(arguments, "OO", &flips, &output) || !read_output(output)) return false;
    has_flips_ = flips != Py_None;
    return !has_flips_ || (flips_.open(flips) && add_rows(flips_.rows()));
  }

  bool takes_changes() const override { return true; }

  bool takes_planes() const override { return true; }

 protected:
  bool find_size(int, const Image& image, int* height, int* width) const override {
    *height = image.height, *width = image.width;
    return true;
  }

  bool make_image(int row, Image*, Arena&) const override {
    return !has_flips_ || (!flips_[row][0] && !flips_[row][1]);
  }

  void run_kernel(int row, const Image& image, const Slot& slot, Arena& arena) const override {
    const bool flips_x = has_flips_ && flips_[row][0], flips_y = has_flips_ && flips_[row][1];
    // Changes take floats apart in vectors, also if there are none.
    const bool can_change = image.channels == 1 || image.channels == kChannels;
    const bool is_faster = image.has_planes() ? !flips_x && !flips_y : !slot.is_interleaved;
    const bool runs_changes =
        image.num_changes || (image.item_size != 1 && can_change && is_faster);
    if (runs_changes && !flips_x) {
      const Image changed = add_normalization(image, slot, arena);
      const bool is_streamed = slot.is_streamed();
      run_float_changes(*variant_.floats, changed, slot.as_image(), nullptr, is_streamed, flips_y);
      return;
    }
    const Rows rows(arena, image, slot.width);
    Image changed = take_image(arena, 1, image.width, image.channels, image.item_size);
    if (!slot.is_interleaved && image.channels > 1) changed.plane = changed.stride / image.channels;
    changed.stride = 0;  // a row of any number
    for (int n = 0; n < slot.height; ++n) {
      const int from = flips_y ? slot.height - 1 - n : n;
      if (!image.is_writable) fetch_row(image, flips_y ? from - kRowsAhead : from + kRowsAhead);
      Image line = image;
      line.pixels = image.row(from);
      if (image.table) {
        const int64_t size = image.row_size();
        for (int k = 0; k < image.pieces(); ++k)
          variant_.color->look_up(image.piece(k).row(from), changed.pixels + k * size, size,
                                  image.table);
        line.pixels = changed.pixels, line.plane = image.has_planes() ? size : Image::kInterleaved;
      } else if (runs_changes) {
        run_float_changes_of_row(*variant_.floats, image, from, changed);
        line.pixels = changed.pixels, line.plane = changed.plane;
      }
      slot.write_row(variant_, line, rows, n, flips_x);
    }
  }

 private:
  // Returns an image with one change more, if values of the slot are normalized.
  static Image add_normalization(const Image& image, const Slot& slot, Arena& arena) {
    FloatChange normalization = {FloatChange::kNormalize};
    if (!slot.read_normalization(&normalization)) return image;
    const size_t count = size_t(image.num_changes);
    auto* const changes =
        reinterpret_cast<FloatChange*>(arena.take((count + 1) * sizeof(FloatChange)));
    std::copy_n(image.changes, count, changes);
    changes[count] = normalization;
    Image changed = image;
    changed.changes = changes, ++changed.num_changes;
    return changed;
  }

  bool has_flips_ = false;
  RowFlips flips_;
};

}  // namespace

PyObject* deliver_stage(PyObject* module, PyObject* arguments) {
  return create_stage<DeliverStage>(module, arguments);
}

PyObject* convert_planes(PyObject*, PyObject* arguments) {
  PyObject *images, *tuple;
  Buffer source;
  Output output;
  const auto read = [&] { return output.read(tuple) ? tuple : nullptr; };
  if (!PyArg_ParseTuple(arguments, "OO", &images, &tuple) ||
      !source.open(images, PyBUF_SIMPLE, "the images", 4) || !catch_errors(read))
    return nullptr;
  const Slot first = output.slot(0);
  bool are_alike = true;  // the parts of a list
  for (int n = 1; n < int(output.rows()); ++n) {
    const Slot other = output.slot(n);
    are_alike = are_alike && other.height == first.height && other.width == first.width &&
                other.row == first.row;
  }
  if (!are_alike || source.item_size() != 1 || source.side(0) != output.rows() ||
      source.side(1) != kChannels || source.side(2) != first.height ||
      source.side(3) != first.width || source.stride(3) != 1 || first.is_interleaved ||
      !output.takes(kChannels, 1)) {
    refuse("the images and the target are not planes (B, 3, H, W) of one size in packed rows");
    return nullptr;
  }
  const bool is_packed = source.stride(2) == first.width &&
                         first.row == Py_ssize_t{first.width} * first.item_size;
  const int rows = is_packed ? 1 : first.height;
  const int64_t count = int64_t{first.width} * (is_packed ? first.height : 1);
  const Variant& variant = *g_variant;
  const bool is_done = run_without_gil([&] {
    for (int n = 0; n < int(output.rows()); ++n)
      for (int c = 0; c < kChannels; ++c)
        for (int row = 0; row < rows; ++row)
          output.slot(n).write_plane(
              variant,
              source.bytes() + n * source.stride(0) + c * source.stride(1) + row * source.stride(2),
              c, row, count);
    order_stores();
  });
  if (!is_done) return nullptr;
  Py_RETURN_NONE;
}

}  // namespace gpupipe
