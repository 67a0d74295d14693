// The functions `normal_field`, `uniform_field`, `noise_stage` and `noise_window_stage` of the
// module.
#include <cmath>
#include <cstring>
#include <optional>

#include "elementary.h"
#include "fields.h"
#include "output.h"

namespace gpupipe {
namespace {

// Draws normal numbers in order, block by block.
class NormalNumbers {
 public:
  NormalNumbers(const FieldLoops& loops, int64_t seed)
      : loops_(loops), key_(make_field_key(seed)) {}

  // Returns the next numbers, and sets `count` to how many: at least 1, and at most `max`.
  const float* take(int64_t max, int64_t* count) {
    if (used_ == kFieldBlock) {
      loops_.draw_normal(key_, block_++, numbers_);
      used_ = 0;
    }
    const float* const first = numbers_ + used_;
    *count = std::min<int64_t>(max, kFieldBlock - used_);
    used_ += *count;
    return first;
  }

 private:
  const FieldLoops& loops_;
  const FieldKey key_;
  uint32_t block_ = 0;
  int64_t used_ = kFieldBlock;
  float numbers_[kFieldBlock];
};

// Reads (seed, array): the array of float32 is C-contiguous and writable.
bool read_field(PyObject* arguments, int64_t* seed, Buffer* numbers, int64_t* count) {
  PyObject* array;
  long long number;
  if (!PyArg_ParseTuple(arguments, "LO", &number, &array) ||
      !numbers->open(array, PyBUF_WRITABLE | PyBUF_C_CONTIGUOUS))
    return false;
  if (numbers->item_size() != sizeof(float)) return refuse("the field is not of float32");
  *seed = number;
  *count = int64_t(numbers->size() / sizeof(float));
  return true;
}

class NoiseStage : public Stage {
 public:
  bool read(PyObject* arguments) override {
    PyObject* seeds;
    int clip;
    if (!PyArg_ParseTuple(arguments, "Offp", &seeds, &scale_, &mean_, &clip)) return false;
    clip_ = clip;
    return seeds_.open(seeds, "seeds", 1) && add_rows(seeds_.rows());
  }

  bool run(int row, Image* image, Arena& arena) const override {
    if (image->channels == 0) return false;
    const Image noisy = image->is_writable ? *image
                                           : take_image(arena, image->height, image->width,
                                                        image->channels, image->item_size);
    NormalNumbers normal(loops_, *seeds_[row]);
    const int64_t size = int64_t{image->width} * image->channels;
    for (int y = 0; y < image->height; ++y) {
      for (int64_t n = 0, count; n < size; n += count) {
        const float* const numbers = normal.take(size - n, &count);
        if (image->item_size == 1) {
          loops_.add_to_levels(image->row(y) + n, numbers, count, scale_, mean_, noisy.row(y) + n);
        } else {
          loops_.add_to_numbers(reinterpret_cast<const float*>(image->row(y)) + n, numbers, count,
                                scale_, mean_, clip_, reinterpret_cast<float*>(noisy.row(y)) + n);
        }
      }
    }
    *image = noisy;
    return true;
  }

 private:
  const FieldLoops& loops_ = find_field_loops(*g_variant);
  RowValues<int64_t> seeds_;
  float scale_, mean_;
  bool clip_;
};

// Rounds a number between -5.8 and 5.8 to float16, to even where it is half-way.
uint16_t to_float16(float number) {
  const uint32_t bits = uint32_t(to_bits(number)), size = bits & 0x7fffffff;
  const uint32_t sign = (bits ^ size) >> 16;
  // Below 2**-14, float16 has steps of 2**-24, as float32 has from 0.5 on.
  if (size < 0x38800000)
    return uint16_t(sign | uint32_t(to_bits(std::abs(number) + 0.5f) - to_bits(0.5f)));
  return uint16_t(sign | ((size - 0x38000000 + 0xfff + (size >> 13 & 1)) >> 13));
}

// Rounds a number likewise to bfloat16.
uint16_t to_bfloat16(float number) {
  const uint32_t bits = uint32_t(to_bits(number));
  return uint16_t((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

// Sets a window of each image to normal numbers: number n is that of channel n % C of pixel n / C.
// Without an output, the images are of float32. With one, the window is in the slot of the sample,
// which a stage before this one has written, of float32, float16 or bfloat16.
class NoiseWindowStage : public Stage {
 public:
  bool read(PyObject* arguments) override {
    PyObject *windows, *seeds, *output;
    if (!PyArg_ParseTuple(arguments, "OOO", &windows, &seeds, &output) ||
        !windows_.open(windows, "the windows") || !seeds_.open(seeds, "seeds", 1) ||
        !add_rows(windows_.rows()) || !add_rows(seeds_.rows()))
      return false;
    if (output == Py_None) return true;
    output_.emplace();
    return output_->read(output) && add_rows(output_->rows()) && read_dtype(output);
  }

  bool takes_planes() const override { return true; }
  bool takes_changes() const override { return output_.has_value(); }

  bool run(int row, Image* image, Arena& arena) const override {
    if (!output_ && (!image->channels || image->item_size != sizeof(float))) return false;
    Image written = output_ ? output_->slot(row).as_image() : *image;
    const int64_t* const w = windows_[row];
    if (w[2] == 0 || w[3] == 0) return true;
    if (!windows_.is_inside(row, written.height, written.width)) return false;
    if (!output_) make_writable(image, arena), written = *image;
    const Arena::Mark mark = arena.mark();
    const int64_t size = w[3] * written.channels;
    float* const pixels = reinterpret_cast<float*>(arena.take(size_t(size) * sizeof(float)));
    NormalNumbers normal(loops_, *seeds_[row]);
    for (int64_t y = 0; y < w[2]; ++y) {
      for (int64_t n = 0, count; n < size; n += count) {
        const float* const numbers = normal.take(size - n, &count);
        std::memcpy(pixels + n, numbers, size_t(count) * sizeof(float));
      }
      Image line = crop_columns(written, w[1], w[3]);
      line.pixels += (w[0] + y) * line.stride;
      write(pixels, line);
    }
    arena.release(mark);
    return true;
  }

 private:
  // Finds out which dtype of 16 bits the output has, if it has one.
  bool read_dtype(PyObject* output) {
    PyObject* const batch = PyTuple_GetItem(output, 0);
    PyObject* const one = PyTuple_Check(batch)  ? PyTuple_GetItem(batch, 0)
                          : PyList_Check(batch) ? PyList_GetItem(batch, 0)
                                                : batch;
    Buffer part;
    if (!part.open(one, PyBUF_STRIDES | PyBUF_FORMAT)) return false;
    is_float16_ = part.has_format("e");
    return part.has_format("feh") || refuse("the output is not of float32, float16 or bfloat16");
  }

  // Writes interleaved pixels to the first row of an image.
  void write(const float* pixels, const Image& line) const {
    if (line.item_size != sizeof(float))
      return is_float16_ ? round(pixels, line, to_float16) : round(pixels, line, to_bfloat16);
    const auto* const bytes = reinterpret_cast<const uint8_t*>(pixels);
    if (!line.has_planes()) {
      std::memcpy(line.pixels, bytes, size_t(line.row_size()));
      return;
    }
    uint8_t* planes[kMaxChannels];
    for (int k = 0; k < line.channels; ++k) planes[k] = line.piece(k).pixels;
    split_row(variant_, bytes, planes, line.channels, line.item_size, line.width, false);
  }

  template <typename Round>
  static void round(const float* pixels, const Image& line, const Round& to_value) {
    const int pieces = line.pieces(), count = line.width * line.channels / pieces;
    for (int k = 0; k < pieces; ++k) {
      auto* const to = reinterpret_cast<uint16_t*>(line.piece(k).pixels);
      for (int n = 0; n < count; ++n) to[n] = to_value(pixels[n * pieces + k]);
    }
  }

  const Variant& variant_ = *g_variant;
  const FieldLoops& loops_ = find_field_loops(variant_);
  RowWindows windows_;
  RowValues<int64_t> seeds_;
  std::optional<Output> output_;
  bool is_float16_ = false;
};

}  // namespace

PyObject* normal_field(PyObject*, PyObject* arguments) {
  int64_t seed, count;
  Buffer buffer;
  if (!read_field(arguments, &seed, &buffer, &count)) return nullptr;
  const FieldLoops& loops = find_field_loops(*g_variant);
  const auto draw = [&] {
    float* const numbers = reinterpret_cast<float*>(buffer.bytes());
    NormalNumbers normal(loops, seed);
    for (int64_t n = 0, part; n < count; n += part) {
      const float* const drawn = normal.take(count - n, &part);
      std::memcpy(numbers + n, drawn, size_t(part) * sizeof(float));
    }
  };
  if (!run_without_gil(draw)) return nullptr;
  Py_RETURN_NONE;
}

PyObject* uniform_field(PyObject*, PyObject* arguments) {
  int64_t seed, count;
  Buffer buffer;
  if (!read_field(arguments, &seed, &buffer, &count)) return nullptr;
  const FieldLoops& loops = find_field_loops(*g_variant);
  const auto draw = [&] {
    loops.draw_uniform(make_field_key(seed), 0, count, reinterpret_cast<float*>(buffer.bytes()));
  };
  if (!run_without_gil(draw)) return nullptr;
  Py_RETURN_NONE;
}

PyObject* noise_stage(PyObject* module, PyObject* arguments) {
  return create_stage<NoiseStage>(module, arguments);
}

PyObject* noise_window_stage(PyObject* module, PyObject* arguments) {
  return create_stage<NoiseWindowStage>(module, arguments);
}

}  // namespace gpupipe
