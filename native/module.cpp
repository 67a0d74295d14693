// gpupipe._kernels: the Python module. Arguments are buffers; the work runs without the GIL.
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <cmath>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "rows.h"

namespace gpupipe {
namespace {

const Variant* const kVariants[] = {
#if defined(__x86_64__)
    &kAvx2,
#endif
#if defined(__aarch64__)
    &kNeon,
#endif
    &kScalar,
};
const Variant* g_variant = &kScalar;

// A buffer of Python, released at the end of its scope.
class Buffer {
 public:
  Buffer() { view_.obj = nullptr; }
  ~Buffer() { PyBuffer_Release(&view_); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  bool open(PyObject* object, int flags, const char* what, int axes) {
    if (PyObject_GetBuffer(object, &view_, flags | PyBUF_STRIDES) != 0) return false;
    if (view_.ndim == axes) return true;
    PyErr_Format(PyExc_ValueError, "%s has %d axes instead of %d", what, view_.ndim, axes);
    return false;
  }
  uint8_t* bytes() const { return static_cast<uint8_t*>(view_.buf); }
  Py_ssize_t item_size() const { return view_.itemsize; }
  Py_ssize_t side(int axis) const { return view_.shape[axis]; }
  Py_ssize_t stride(int axis) const { return view_.strides[axis]; }

  // Whether the items are packed, `count` of `item_size` bytes.
  bool is_packed(Py_ssize_t count, Py_ssize_t item_size) const {
    return view_.itemsize == item_size && view_.len == count * item_size &&
           PyBuffer_IsContiguous(&view_, 'C');
  }

 private:
  Py_buffer view_;
};

bool refuse(const char* message) {
  PyErr_SetString(PyExc_ValueError, message);
  return false;
}

constexpr Py_ssize_t kMostSide = 1 << 20;

bool read_image(const Buffer& source, Image* image) {
  const Py_ssize_t height = source.side(0), width = source.side(1);
  if (source.item_size() != 1 || source.side(2) != kChannels)
    return refuse("the image is not (H, W, 3) of uint8");
  if (height < 1 || width < 1 || height > kMostSide || width > kMostSide)
    return refuse("the image is empty or too large");
  if (source.stride(2) != 1 || source.stride(1) != kChannels ||
      source.stride(0) < width * kChannels)
    return refuse("the rows of the image are not packed");
  *image = {source.bytes(), source.stride(0), int(height), int(width)};
  return true;
}

// Where the values go: planes, or interleaved pixels.
struct Target {
  uint8_t* values;
  Py_ssize_t plane, row;
  int item_size, height, width;
  bool is_interleaved;
};

bool read_target(const Buffer& buffer, Target* target) {
  const Py_ssize_t size = buffer.item_size(), pixel = buffer.stride(2);
  if (buffer.side(0) != kChannels) return refuse("the target is not (3, H, W)");
  if (buffer.side(1) < 1 || buffer.side(2) < 1 || buffer.side(1) > kMostSide ||
      buffer.side(2) > kMostSide)
    return refuse("the target is empty or too large");
  if (size != 1 && size != 2 && size != 4 && size != 8)
    return refuse("the values of the target do not have 1, 2, 4 or 8 bytes");
  const bool is_interleaved = buffer.stride(0) == size && pixel == kChannels * size;
  if (!is_interleaved && pixel != size && buffer.side(2) > 1)
    return refuse("the rows of the target are not packed");
  *target = {buffer.bytes(),      buffer.stride(0),     buffer.stride(1),  int(size),
             int(buffer.side(1)), int(buffer.side(2)), is_interleaved};
  return true;
}

// The conversions of a target: one for each plane, or one for all channels.
struct Conversions {
  Buffer table, numbers;
  Conversion parts[kChannels];

  bool read(PyObject* table_object, PyObject* numbers_object, const Target& target) {
    const bool has_table = table_object != Py_None, has_numbers = numbers_object != Py_None;
    if (has_table && !(table.open(table_object, PyBUF_SIMPLE, "the table", 2) &&
                       table.is_packed(kChannels * 256, target.item_size)))
      return PyErr_Occurred() ? false : refuse("the table is not (3, 256) of the target's dtype");
    if (!has_table && target.item_size != 1) return refuse("a target of numbers needs a table");
    if (has_numbers && !(numbers.open(numbers_object, PyBUF_SIMPLE, "the numbers", 2) &&
                         numbers.is_packed(3 * kChannels, sizeof(float))))
      return PyErr_Occurred() ? false : refuse("the numbers are not (3, 3) of float32");
    const bool can_be_linear = target.item_size == 2 || target.item_size == 4;
    for (int c = 0; c < kChannels; ++c) {
      Conversion& part = parts[c];
      part.item_size = target.item_size;
      part.channels = target.is_interleaved ? kChannels : 1;
      part.is_identity = !has_table;
      part.is_linear = has_numbers && can_be_linear;
      part.is_scaling = true;
      for (int k = 0; k < kChannels; ++k) {
        const int channel = target.is_interleaved ? k : c;
        part.table[k] = has_table ? table.bytes() + channel * 256 * target.item_size : nullptr;
      }
      for (int n = 0; part.is_linear && n < kPeriod; ++n) {
        const float* own = reinterpret_cast<const float*>(numbers.bytes());
        own += target.is_interleaved ? n % kChannels : c;
        part.scale[n] = own[0], part.mean[n] = own[kChannels], part.std[n] = own[2 * kChannels];
        part.is_scaling = part.is_scaling && part.mean[n] == 0 && part.std[n] == 1;
      }
    }
    return true;
  }
};

// Three rows of levels, and one of interleaved pixels.
class Rows {
 public:
  explicit Rows(int width) : bytes_(2 * kChannels * size_t(width + kPadding)) {
    for (int c = 0; c < kChannels; ++c) planes[c] = bytes_.data() + c * size_t(width + kPadding);
    pixels = bytes_.data() + kChannels * size_t(width + kPadding);
  }
  uint8_t* planes[kChannels];
  uint8_t* pixels;

 private:
  std::vector<uint8_t> bytes_;
};

void write_planes(const Variant& variant, const uint8_t* const planes[], const Target& target,
                  int row, const Conversions& conversions, uint8_t* pixels) {
  uint8_t* const values = target.values + row * target.row;
  if (target.is_interleaved) {
    variant.merge(planes, pixels, target.width);
    variant.convert(pixels, values, int64_t{target.width} * kChannels, conversions.parts[0]);
    return;
  }
  for (int c = 0; c < kChannels; ++c)
    variant.convert(planes[c], values + c * target.plane, target.width, conversions.parts[c]);
}

void run_warp(const Variant& variant, const Warp& warp, const Target& target,
              const Conversions& conversions, Rows& rows) {
  for (int row = 0; row < target.height; ++row) {
    variant.warp_row(warp, row, target.width, rows.planes);
    write_planes(variant, rows.planes, target, row, conversions, rows.pixels);
  }
}

void run_convert(const Variant& variant, const Image& source, bool flips_x, bool flips_y,
                 const Target& target, const Conversions& conversions, Rows& rows) {
  for (int row = 0; row < target.height; ++row) {
    const uint8_t* pixels =
        source.pixels + (flips_y ? target.height - 1 - row : row) * source.stride;
    if (target.is_interleaved && !flips_x) {
      variant.convert(pixels, target.values + row * target.row, int64_t{target.width} * kChannels,
                      conversions.parts[0]);
      continue;
    }
    variant.split(pixels, rows.planes, target.width, flips_x);
    write_planes(variant, rows.planes, target, row, conversions, rows.pixels);
  }
}

bool read_warp(const Buffer& matrix, const Buffer& fill, Warp* warp) {
  if (!matrix.is_packed(6, sizeof(double)) || !fill.is_packed(kChannels, sizeof(double)))
    return refuse("the matrix is not (2, 3), or the fill not (3,), of float64");
  const double* numbers = reinterpret_cast<const double*>(matrix.bytes());
  for (int n = 0; n < 6; ++n) warp->matrix[n] = numbers[n];
  for (int n = 0; n < kBlock; ++n) {
    warp->dx[n] = to_fixed(n * numbers[0]);
    warp->dy[n] = to_fixed(n * numbers[3]);
  }
  for (int c = 0; c < kChannels; ++c) {
    const double value = reinterpret_cast<const double*>(fill.bytes())[c];
    if (!(value >= 0 && value <= 255)) return refuse("the fill is not from 0 to 255");
    warp->fill[c] = float(value);
    warp->filled[c] = uint8_t(std::nearbyint(value));
  }
  return true;
}

template <typename Work>
PyObject* run_without_gil(int width, const Work& work) {
  std::unique_ptr<Rows> rows;
  try {
    rows = std::make_unique<Rows>(width);
  } catch (const std::bad_alloc&) {
    return PyErr_NoMemory();
  }
  const Variant& variant = *g_variant;
  Py_BEGIN_ALLOW_THREADS
  work(variant, *rows);
  Py_END_ALLOW_THREADS
  Py_RETURN_NONE;
}

PyObject* warp(PyObject*, PyObject* arguments) {
  PyObject *source_object, *matrix_object, *fill_object, *target_object, *table, *numbers;
  if (!PyArg_ParseTuple(arguments, "OOOOOO", &source_object, &matrix_object, &fill_object,
                        &target_object, &table, &numbers))
    return nullptr;
  Buffer source, matrix, fill, target_buffer;
  Conversions conversions;
  Target target;
  Warp warp;
  if (!source.open(source_object, PyBUF_SIMPLE, "the image", 3) ||
      !matrix.open(matrix_object, PyBUF_SIMPLE, "the matrix", 2) ||
      !fill.open(fill_object, PyBUF_SIMPLE, "the fill", 1) ||
      !target_buffer.open(target_object, PyBUF_WRITABLE, "the target", 3) ||
      !read_image(source, &warp.source) || !read_warp(matrix, fill, &warp) ||
      !read_target(target_buffer, &target) || !conversions.read(table, numbers, target))
    return nullptr;
  return run_without_gil(target.width, [&](const Variant& variant, Rows& rows) {
    run_warp(variant, warp, target, conversions, rows);
  });
}

PyObject* convert(PyObject*, PyObject* arguments) {
  PyObject *source_object, *target_object, *table, *numbers;
  int flips_x, flips_y;
  if (!PyArg_ParseTuple(arguments, "OppOOO", &source_object, &flips_x, &flips_y, &target_object,
                        &table, &numbers))
    return nullptr;
  Buffer source, target_buffer;
  Conversions conversions;
  Target target;
  Image image;
  if (!source.open(source_object, PyBUF_SIMPLE, "the image", 3) ||
      !target_buffer.open(target_object, PyBUF_WRITABLE, "the target", 3) ||
      !read_image(source, &image) || !read_target(target_buffer, &target) ||
      !conversions.read(table, numbers, target))
    return nullptr;
  if (image.height != target.height || image.width != target.width) {
    refuse("the image and the target differ in size");
    return nullptr;
  }
  return run_without_gil(target.width, [&](const Variant& variant, Rows& rows) {
    run_convert(variant, image, flips_x, flips_y, target, conversions, rows);
  });
}

PyObject* variants(PyObject*, PyObject*) {
  PyObject* names = PyList_New(0);
  for (const Variant* variant : kVariants) {
    if (!names || !variant->is_supported()) continue;
    PyObject* name = PyUnicode_FromString(variant->name);
    if (!name || PyList_Append(names, name) != 0) Py_CLEAR(names);
    Py_XDECREF(name);
  }
  return names;
}

PyObject* select(PyObject*, PyObject* name) {
  const char* wanted = PyUnicode_AsUTF8(name);
  if (!wanted) return nullptr;
  for (const Variant* variant : kVariants) {
    if (variant->name != std::string(wanted) || !variant->is_supported()) continue;
    g_variant = variant;
    Py_RETURN_NONE;
  }
  return PyErr_Format(PyExc_ValueError, "this machine has no variant '%s'", wanted);
}

PyMethodDef kMethods[] = {
    {"warp", warp, METH_VARARGS,
     "warp(image, matrix, fill, target, table, numbers)\n--\n\n"
     "Warp an image (H, W, 3) of uint8 and convert it to the target (3, H, W)."},
    {"convert", convert, METH_VARARGS,
     "convert(image, flips_x, flips_y, target, table, numbers)\n--\n\n"
     "Flip an image (H, W, 3) of uint8 and convert it to the target (3, H, W)."},
    {"variants", variants, METH_NOARGS,
     "variants()\n--\n\nReturn the names of the variants that this machine can run."},
    {"select", select, METH_O,
     "select(name)\n--\n\nRun this variant from now on, in all threads."},
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef kModule = {PyModuleDef_HEAD_INIT, "gpupipe._kernels",
                       "Kernels in C++ of the engine cpu.", 0, kMethods,
                       nullptr, nullptr, nullptr, nullptr};

}  // namespace
}  // namespace gpupipe

PyMODINIT_FUNC PyInit__kernels() {
  for (const gpupipe::Variant* variant : gpupipe::kVariants) {
    if (!variant->is_supported()) continue;
    gpupipe::g_variant = variant;
    break;
  }
  return PyModule_Create(&gpupipe::kModule);
}
