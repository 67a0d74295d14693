// The functions `normal_field` and `uniform_field` of the module, and the stage that adds noise.
#include "fields.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "stage.h"

namespace gpupipe {

extern std::atomic<const Variant*> g_variant;

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

}  // namespace gpupipe
