// gpupipe._kernels: the Python module. Arguments are buffers; the work runs without the GIL.
#include <string>

#include "arguments.h"
#include "rows.h"

namespace gpupipe {

PyObject* resize(PyObject*, PyObject* arguments);
PyObject* read_files(PyObject*, PyObject* parts);
PyObject* stat_files(PyObject*, PyObject* paths);

const Variant* g_variant = &kScalar;

namespace {

const Variant* const kVariants[] = {
#if defined(__x86_64__)
    &kAvx512,
    &kAvx2,
#endif
#if defined(__aarch64__)
    &kNeon,
#endif
    &kScalar,
};

constexpr int kLine = 64;                // bytes of a line of the cache
constexpr int64_t kMostFetched = 1 << 20;  // bytes that stay in the cache for the work that follows

// Reads the rows of the source that a warp shows: in order, since memory answers a warp's own reads
// much more slowly.
void fetch_rows(const Warp& warp, const Target& target) {
  const Image& source = warp.source;
  double first = source.height, last = -1;
  for (int corner = 0; corner < 4; ++corner) {
    const double column = corner & 1 ? target.width - 1 : 0;
    const double row = corner & 2 ? target.height - 1 : 0;
    const double y = warp.matrix[3] * column + warp.matrix[4] * row + warp.matrix[5];
    first = std::min(first, y), last = std::max(last, y + 1);
  }
  const int top = int(std::clamp(first, 0.0, double(source.height)));
  const int bottom = int(std::clamp(last + 1, 0.0, double(source.height)));
  const int64_t size = int64_t{source.width} * kChannels;
  if ((bottom - top) * size > kMostFetched) return;
  unsigned sum = 0;
  for (int row = top; row < bottom; ++row)
    for (int64_t n = 0; n < size; n += kLine) sum |= source.pixels[row * source.stride + n];
  asm volatile("" : : "r"(sum));  // so that the compiler keeps the reads
}

void run_warp(const Variant& variant, const Warp& warp, const Target& target,
              const Conversions& conversions, bool is_in_cache, Rows& rows) {
  const int most = count_rows_at_once(target);
  if (!is_in_cache) fetch_rows(warp, target);
  for (int row = 0; row < target.height; row += most) {
    const int count = std::min(most, target.height - row);
    uint8_t* planes[kChannels] = {rows.planes[0], rows.planes[1], rows.planes[2]};
    for (int n = 0; n < count; ++n) {
      variant.warp_row(warp, row + n, target.width, planes);
      for (uint8_t*& plane : planes) plane += target.width;
    }
    write_planes(variant, rows.planes, target, row, count, conversions, rows.pixels);
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
    write_planes(variant, rows.planes, target, row, 1, conversions, rows.pixels);
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

PyObject* warp(PyObject*, PyObject* arguments) {
  PyObject *source_object, *matrix_object, *fill_object, *target_object, *table, *numbers;
  PyObject* before_object = nullptr;
  Work* before;
  if (!PyArg_ParseTuple(arguments, "OOOOOO|O", &source_object, &matrix_object, &fill_object,
                        &target_object, &table, &numbers, &before_object) ||
      !read_work(before_object, &before))
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
  const int count = count_rows_at_once(target);
  return run_without_gil(target.width, count, before, [&](const Variant& variant, Rows& rows) {
    run_warp(variant, warp, target, conversions, before != nullptr, rows);
  });
}

PyObject* convert(PyObject*, PyObject* arguments) {
  PyObject *source_object, *target_object, *table, *numbers, *before_object = nullptr;
  Work* before;
  int flips_x, flips_y;
  if (!PyArg_ParseTuple(arguments, "OppOOO|O", &source_object, &flips_x, &flips_y, &target_object,
                        &table, &numbers, &before_object) ||
      !read_work(before_object, &before))
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
  return run_without_gil(target.width, 1, before, [&](const Variant& variant, Rows& rows) {
    run_convert(variant, image, flips_x, flips_y, target, conversions, rows);
  });
}

PyObject* convert_planes(PyObject*, PyObject* arguments) {
  PyObject *source_object, *target_object, *table, *numbers;
  if (!PyArg_ParseTuple(arguments, "OOOO", &source_object, &target_object, &table, &numbers))
    return nullptr;
  Buffer source, target_buffer;
  Conversions conversions;
  Target target;
  if (!source.open(source_object, PyBUF_SIMPLE, "the image", 3) ||
      !target_buffer.open(target_object, PyBUF_WRITABLE, "the target", 3) ||
      !read_target(target_buffer, &target) || !conversions.read(table, numbers, target))
    return nullptr;
  if (source.item_size() != 1 || source.side(0) != kChannels ||
      source.side(1) != target.height || source.side(2) != target.width ||
      source.stride(2) != 1 || target.is_interleaved) {
    refuse("the image and the target are not planes (3, H, W) of one size, in packed rows");
    return nullptr;
  }
  const bool is_packed = source.stride(1) == target.width &&
                         target.row == Py_ssize_t{target.width} * target.item_size;
  const int rows = is_packed ? 1 : target.height;
  const int64_t count = int64_t{target.width} * (is_packed ? target.height : 1);
  return run_without_gil(1, 1, nullptr, [&](const Variant& variant, Rows&) {
    for (int c = 0; c < kChannels; ++c)
      for (int row = 0; row < rows; ++row)
        variant.convert(source.bytes() + c * source.stride(0) + row * source.stride(1),
                        target.values + c * target.plane + row * target.row, count,
                        conversions.parts[c]);
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
     "warp(image, matrix, fill, target, table, numbers, before=None) -> bool\n\n"
     "Warp an image (H, W, 3) of uint8 and convert it to the target (3, H, W).\n"
     "`before` is work, such as that of gpupipe._jpeg.prepare, which is done first: if it fails,\n"
     "return False, and do nothing more."},
    {"convert", convert, METH_VARARGS,
     "convert(image, flips_x, flips_y, target, table, numbers, before=None) -> bool\n\n"
     "Flip an image (H, W, 3) of uint8 and convert it to the target (3, H, W)."},
    {"resize", resize, METH_VARARGS,
     "resize(image, size, corner, is_cubic, antialias, flips_x, flips_y, target, table, numbers,"
     " before=None) -> bool\n\n"
     "Resize an image (H, W, 3) of uint8 to `size`, and flip and convert the window at `corner` to "
     "the target (3, H, W)."},
    {"convert_planes", convert_planes, METH_VARARGS,
     "convert_planes(image, target, table, numbers)\n--\n\n"
     "Convert an image (3, H, W) of uint8 to the target (3, H, W)."},
    {"read_files", read_files, METH_O,
     "read_files(parts) -> list\n\n"
     "Read parts of files: tuples (path, offset, length), where a length of None means the whole "
     "file.\nFor each, return its bytes as a buffer, fewer if the file ends before, or the number "
     "of an error."},
    {"stat_files", stat_files, METH_O,
     "stat_files(paths) -> list\n\n"
     "For each path, return the file's size in bytes and the time of its last change in ns, or None "
     "if it cannot be seen."},
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
  PyObject* module = PyModule_Create(&gpupipe::kModule);
  if (module && PyModule_AddIntConstant(module, "MOST_SIDE", gpupipe::kMostSide) != 0)
    Py_CLEAR(module);
  return module;
}
