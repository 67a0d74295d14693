// The function `draw_uniforms` of the module: the draws of gpupipe/sampling/draws.py, which says
// what is hashed, and has the same in NumPy.
#include "stage.h"

namespace gpupipe {
namespace {

constexpr uint64_t kGolden = 0x9E3779B97F4A7C15, kRepeat = 0xD1B54A32D192ED03;

uint64_t mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
  return x ^ (x >> 31);
}

// Writes the draws of one stream, (samples, count); returns the end of what it wrote.
double* draw(uint64_t key, int64_t count, const RowValues<int64_t>& ids,
             const RowValues<int64_t>* repeats, double* to) {
  for (Py_ssize_t n = 0; n < ids.rows(); ++n) {
    uint64_t sample = mix(uint64_t(*ids[n]) * kGolden + key);
    const uint64_t repeat = repeats ? uint64_t(*(*repeats)[n]) : 0;
    if (repeat) sample = mix(sample + repeat * kRepeat);
    for (int64_t lane = 0; lane < count; ++lane)
      *to++ = double(mix(sample + uint64_t(lane) * kGolden + key) >> 11) * 0x1p-53;
  }
  return to;
}

}  // namespace

PyObject* draw_uniforms(PyObject*, PyObject* arguments) {
  PyObject *key_object, *count_object, *id_object, *repeat_object, *output_object;
  RowValues<uint64_t> keys;
  RowValues<int64_t> counts, ids, repeats;
  Buffer output;
  if (!PyArg_ParseTuple(arguments, "OOOOO", &key_object, &count_object, &id_object, &repeat_object,
                        &output_object) ||
      !keys.open(key_object, "the keys", 1) || !counts.open(count_object, "the counts", 1) ||
      !ids.open(id_object, "the ids", 1) ||
      (repeat_object != Py_None && !repeats.open(repeat_object, "the repeats", 1)) ||
      !output.open(output_object, PyBUF_WRITABLE | PyBUF_FORMAT, "the output", 1))
    return nullptr;
  int64_t total = 0, size = 0;
  bool is_too_large = false;
  for (Py_ssize_t n = 0; n < counts.rows(); ++n)
    is_too_large |= __builtin_add_overflow(total, std::max<int64_t>(*counts[n], 0), &total);
  is_too_large |= __builtin_mul_overflow(total, ids.rows(), &size);
  if (is_too_large || keys.rows() != counts.rows() || !output.has_format("d") ||
      (repeat_object != Py_None && repeats.rows() != ids.rows()) ||
      !output.is_packed(size, sizeof(double))) {
    refuse("the keys, counts, ids, repeats and the output do not fit together");
    return nullptr;
  }
  const auto draw_all = [&] {
    auto* to = reinterpret_cast<double*>(output.bytes());
    for (Py_ssize_t n = 0; n < keys.rows(); ++n)
      to = draw(*keys[n], *counts[n], ids, repeat_object == Py_None ? nullptr : &repeats, to);
  };
  if (!run_without_gil(draw_all)) return nullptr;
  Py_RETURN_NONE;
}

}  // namespace gpupipe
