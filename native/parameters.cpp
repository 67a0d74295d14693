// Functions of the module that compute parameters of steps for a whole batch, each in one call:
// what NumPy does in a dozen. gpupipe/pipeline/random_windows.py and gpupipe/augment/policy_ops.py
// have the same in NumPy, to the bit: each operation here is a single IEEE operation, in the same
// order. Those of windows take long for many views, so they run without the GIL.
#include <algorithm>
#include <cmath>

#include "stage.h"

namespace gpupipe {
namespace {

// An array of T that a function fills.
template <typename T = double>
class Output {
 public:
  bool open(PyObject* object, const char* name, Py_ssize_t rows, Py_ssize_t columns) {
    if (!buffer_.open(object, PyBUF_WRITABLE | PyBUF_STRIDES | PyBUF_FORMAT)) return false;
    columns_ = columns;
    if (buffer_.has_format(Dtype<T>::letters) && buffer_.is_packed(rows * columns, sizeof(T)))
      return true;
    PyErr_Format(PyExc_ValueError, "%s is not (%zd, %zd) of %s in C order", name, rows, columns,
                 Dtype<T>::name);
    return false;
  }

  T* operator[](Py_ssize_t row) const {
    return reinterpret_cast<T*>(buffer_.bytes()) + row * columns_;
  }

 private:
  Buffer buffer_;
  Py_ssize_t columns_ = 0;
};

constexpr Py_ssize_t kMaxTries = 1 << 20;

bool check_tries(Py_ssize_t tries) {
  return (tries >= 1 && tries <= kMaxTries) || refuse("there are no tries, or too many");
}

// The numbers of the operations of policies, and whether their shifts are whole pixels.
struct Moves {
  int shear_x, shear_y, rotate, shift[2], relative_shift[2], are_whole;
};

double find_shift(const Moves& moves, int op, double value, int axis, double side) {
  const double of_size = (op == moves.relative_shift[axis] ? value : 0.0) * side;
  const double shift = (op == moves.shift[axis] ? value : 0.0) + of_size;
  return moves.are_whole ? double(std::trunc(float(shift))) : shift;
}

}  // namespace

PyObject* window_factors(PyObject*, PyObject* arguments) {
  PyObject *area_object, *aspect_object, *output_object;
  Py_ssize_t tries;
  int is_width_first;
  RowValues<double> areas, aspects;
  Output<> output;
  if (!PyArg_ParseTuple(arguments, "OOnpO", &area_object, &aspect_object, &tries, &is_width_first,
                        &output_object) ||
      !check_tries(tries) || !areas.open(area_object, "the areas", tries) ||
      !aspects.open(aspect_object, "the aspects", tries) ||
      !output.open(output_object, "the output", areas.rows(), 2 * tries))
    return nullptr;
  if (areas.rows() != aspects.rows()) {
    refuse("the areas and aspects differ in rows");
    return nullptr;
  }
  const double *const area = areas[0], *const aspect = aspects[0];
  double* const to = output[0];
  const auto compute = [&] {
    for (Py_ssize_t n = 0; n < areas.rows() * tries; ++n) {
      to[2 * n + is_width_first] = std::sqrt(area[n] / aspect[n]);
      to[2 * n + !is_width_first] = std::sqrt(area[n] * aspect[n]);
    }
  };
  if (!run_without_gil(compute)) return nullptr;
  Py_RETURN_NONE;
}

PyObject* choose_windows(PyObject*, PyObject* arguments) {
  PyObject *factor_object, *position_object, *size_object, *run_object, *output_object;
  Py_ssize_t tries;
  RowValues<double> factors, positions, sizes;
  RowValues<int32_t> runs;
  Output<> output;
  if (!PyArg_ParseTuple(arguments, "OnOOOO", &factor_object, &tries, &position_object, &size_object,
                        &run_object, &output_object) ||
      !check_tries(tries) || !factors.open(factor_object, "the factors", 2 * tries) ||
      !positions.open(position_object, "the positions", 2) ||
      !sizes.open(size_object, "the sizes", 2) ||
      (run_object != Py_None && !runs.open(run_object, "the flags", 1)) ||
      !output.open(output_object, "the output", factors.rows(), 4))
    return nullptr;
  const bool is_erasing = run_object != Py_None;
  if (positions.rows() != factors.rows() || sizes.rows() != factors.rows() ||
      (is_erasing && runs.rows() != factors.rows())) {
    refuse("the factors, positions, sizes and flags do not fit together");
    return nullptr;
  }
  bool do_all_fit = true;
  const auto choose = [&](Py_ssize_t row) {
    const double *const size = sizes[row], *const factor = factors[row];
    const double side = std::sqrt(size[0] * size[1]);
    const auto fits = [&](const double* try_of) {
      const double height = std::nearbyint(try_of[0] * side);
      const double width = std::nearbyint(try_of[1] * side);
      return is_erasing ? height < size[0] && width < size[1]
                        : height <= size[0] && width <= size[1] && height > 0 && width > 0;
    };
    Py_ssize_t n = 0;
    while (n < tries && !fits(factor + 2 * n)) ++n;
    const bool has_window = n < tries && (!is_erasing || *runs[row] > 0);
    do_all_fit = do_all_fit && n < tries;
    const double* const chosen = factor + (n < tries ? 2 * n : 0);
    for (int axis = 0; axis < 2; ++axis) {
      const double shape =
          is_erasing && !has_window ? 0.0 : std::nearbyint(chosen[axis] * side);
      output[row][axis] = std::floor(positions[row][axis] * (size[axis] - shape + 1.0));
      output[row][2 + axis] = shape;
    }
  };
  const auto choose_all = [&] {
    for (Py_ssize_t row = 0; row < factors.rows(); ++row) choose(row);
  };
  if (!run_without_gil(choose_all)) return nullptr;
  return PyBool_FromLong(do_all_fit);
}

PyObject* policy_moves(PyObject*, PyObject* arguments) {
  PyObject *op_object, *value_object, *cosine_object, *sine_object, *size_object;
  PyObject *linear_object, *source_object, *output_object;
  Moves moves;
  RowValues<int32_t> ops;
  RowValues<double> values, cosines, sines, sizes;
  Output<> linears, sources, outputs;
  if (!PyArg_ParseTuple(arguments, "(iiiiiiip)OOOOO(OOO)", &moves.shear_x, &moves.shear_y,
                        &moves.rotate, &moves.shift[0], &moves.relative_shift[0], &moves.shift[1],
                        &moves.relative_shift[1], &moves.are_whole, &op_object, &value_object,
                        &cosine_object, &sine_object, &size_object, &linear_object,
                        &source_object, &output_object) ||
      !ops.open(op_object, "the operations", 1) || !values.open(value_object, "the values", 1) ||
      !cosines.open(cosine_object, "the cosines", 1) || !sines.open(sine_object, "the sines", 1) ||
      !sizes.open(size_object, "the sizes", 2) ||
      !linears.open(linear_object, "the linear parts", ops.rows(), 4) ||
      !sources.open(source_object, "the sources", ops.rows(), 2) ||
      !outputs.open(output_object, "the outputs", ops.rows(), 2))
    return nullptr;
  for (const Py_ssize_t rows : {values.rows(), cosines.rows(), sines.rows(), sizes.rows()}) {
    if (rows == ops.rows()) continue;
    refuse("the operations, values, cosines, sines and sizes do not fit together");
    return nullptr;
  }
  for (Py_ssize_t row = 0; row < ops.rows(); ++row) {
    const int op = *ops[row];
    const double value = *values[row], cosine = *cosines[row], sine = *sines[row];
    double* const linear = linears[row];
    linear[0] = linear[3] = cosine;
    linear[1] = (op == moves.shear_x ? value : 0.0) + sine;
    linear[2] = (op == moves.shear_y ? value : 0.0) - sine;
    for (int axis = 0; axis < 2; ++axis) {
      const double side = sizes[row][1 - axis];
      sources[row][axis] = op == moves.rotate ? side / 2.0 : 0.0;
      outputs[row][axis] = sources[row][axis] + find_shift(moves, op, value, axis, side);
    }
  }
  Py_RETURN_NONE;
}

PyObject* warp_matrices(PyObject*, PyObject* arguments) {
  PyObject *linear_object, *source_object, *at_object, *output_object;
  RowValues<double> linears, sources, ats;
  Output<> output;
  if (!PyArg_ParseTuple(arguments, "OOOO", &linear_object, &source_object, &at_object,
                        &output_object) ||
      !linears.open(linear_object, "the linear parts", 4) ||
      !sources.open(source_object, "the sources", 2) || !ats.open(at_object, "the outputs", 2) ||
      !output.open(output_object, "the matrices", linears.rows(), 6))
    return nullptr;
  if (sources.rows() != linears.rows() || ats.rows() != linears.rows()) {
    refuse("the linear parts, sources and outputs differ in rows");
    return nullptr;
  }
  for (Py_ssize_t row = 0; row < linears.rows(); ++row) {
    const double *const source = sources[row], *const at = ats[row];
    for (int axis = 0; axis < 2; ++axis) {
      const double a = linears[row][2 * axis], b = linears[row][2 * axis + 1];
      double* const to = output[row] + 3 * axis;
      to[0] = a;
      to[1] = b;
      to[2] = source[axis] - (a * at[0] + b * at[1]) + 0.5 * (a + b) - 0.5;
    }
  }
  Py_RETURN_NONE;
}

PyObject* limit_windows(PyObject*, PyObject* arguments) {
  PyObject *window_object, *size_object, *output_object;
  RowWindows windows;
  RowValues<double> sizes;
  Output<int64_t> output;
  if (!PyArg_ParseTuple(arguments, "OOO", &window_object, &size_object, &output_object) ||
      !windows.open(window_object, "the windows") || !sizes.open(size_object, "the sizes", 2) ||
      !output.open(output_object, "the output", windows.rows(), 4))
    return nullptr;
  if (sizes.rows() != windows.rows()) {
    refuse("the windows and sizes differ in rows");
    return nullptr;
  }
  for (Py_ssize_t row = 0; row < windows.rows(); ++row) {
    const int64_t* const window = windows[row];
    int64_t first[2], end[2];
    for (int axis = 0; axis < 2; ++axis) {
      first[axis] = std::max<int64_t>(window[axis], 0);
      end[axis] = std::min(window[axis] + window[2 + axis], int64_t(sizes[row][axis]));
    }
    const bool is_inside = end[0] > first[0] && end[1] > first[1];
    for (int axis = 0; axis < 2; ++axis) {
      output[row][axis] = is_inside ? first[axis] : 0;
      output[row][2 + axis] = is_inside ? end[axis] - first[axis] : int64_t(sizes[row][axis]);
    }
  }
  Py_RETURN_NONE;
}

}  // namespace gpupipe
