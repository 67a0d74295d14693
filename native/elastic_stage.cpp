// The function `displacement` of the module, and the stage that moves pixels.
#include <atomic>

#include "elastic.h"
#include "stage.h"

namespace gpupipe {

extern std::atomic<const Variant*> g_variant;

namespace {

// What Python passes as ((alpha_x, alpha_y), kernel_x, kernel_y): see Elastic.
class ElasticArguments : public Elastic {
 public:
  bool read(PyObject* tuple) {
    PyObject* objects[2];
    if (!PyArg_ParseTuple(tuple, "(ff)OO", &alpha[0], &alpha[1], &objects[0], &objects[1]))
      return false;
    for (int n = 0; n < 2; ++n) {
      Buffer& buffer = buffers_[n];
      if (!buffer.open(objects[n], PyBUF_SIMPLE, "the kernel", 2)) return false;
      if (buffer.side(0) != 2 || buffer.side(1) < 1 || buffer.side(1) > kMaxSide ||
          !buffer.is_packed(2 * buffer.side(1), sizeof(float)))
        return refuse("the kernel is not (2, half + 1) of float32");
      kernels[n] = reinterpret_cast<const float*>(buffer.bytes());
      half[n] = int(buffer.side(1)) - 1;
    }
    return true;
  }

 private:
  Buffer buffers_[2];
};

class ElasticStage : public Stage {
 public:
  bool read(PyObject* arguments) override {
    PyObject *seeds, *elastic;
    int is_bilinear;
    float* const fill = how_.fill;
    if (!PyArg_ParseTuple(arguments, "OO!p(ffff)", &seeds, &PyTuple_Type, &elastic, &is_bilinear,
                          &fill[0], &fill[1], &fill[2], &fill[3]))
      return false;
    how_.is_bilinear = is_bilinear;
    return elastic_.read(elastic) && seeds_.open(seeds, "seeds", 1) && add_rows(seeds_.rows());
  }

  bool run(int row, Image* image, Arena& arena) const override {
    const int height = image->height, width = image->width;
    if (image->channels == 0 || !Displacements::can_blur(elastic_, height, width)) return false;
    const Image moved = take_image(arena, height, width, image->channels, image->item_size);
    const Arena::Mark mark = arena.mark();
    const Displacements displacements(loops_, elastic_, *seeds_[row], height, width, arena);
    remap(*image, displacements, how_, moved, arena);
    arena.release(mark);
    *image = moved;
    return true;
  }

 private:
  const FieldLoops& loops_ = find_field_loops(*g_variant);
  ElasticArguments elastic_;
  RowValues<int64_t> seeds_;
  Remap how_;
};

}  // namespace

PyObject* displacement(PyObject*, PyObject* arguments) {
  long long seed;
  PyObject *tuple, *field;
  ElasticArguments elastic;
  Buffer buffer;
  if (!PyArg_ParseTuple(arguments, "LO!O", &seed, &PyTuple_Type, &tuple, &field) ||
      !elastic.read(tuple) || !buffer.open(field, PyBUF_WRITABLE, "the field", 3))
    return nullptr;
  const Py_ssize_t height = buffer.side(0), width = buffer.side(1);
  if (height < 1 || width < 1 || height > kMaxSide || width > kMaxSide ||
      !buffer.is_packed(height * width * 2, sizeof(float)) || buffer.side(2) != 2) {
    refuse("the field is not (H, W, 2) of float32");
    return nullptr;
  }
  if (!Displacements::can_blur(elastic, int(height), int(width))) {
    refuse("the field is smaller than the blur");
    return nullptr;
  }
  const FieldLoops& loops = find_field_loops(*g_variant);
  const auto draw = [&] {
    Arena arena;
    const Displacements drawn(loops, elastic, seed, int(height), int(width), arena);
    std::vector<float> numbers(static_cast<size_t>(width));
    float* const first = reinterpret_cast<float*>(buffer.bytes());
    for (int row = 0; row < height; ++row) {
      for (int axis = 0; axis < 2; ++axis) {
        drawn.fill_row(axis, row, numbers.data());
        for (Py_ssize_t n = 0; n < width; ++n)
          first[2 * (row * width + n) + axis] = numbers[size_t(n)];
      }
    }
  };
  if (!run_without_gil(draw)) return nullptr;
  Py_RETURN_NONE;
}

PyObject* elastic_stage(PyObject* module, PyObject* arguments) {
  return create_stage<ElasticStage>(module, arguments);
}

}  // namespace gpupipe
