// The function `open_files` of the module, and the type Files.
#include "file_set.h"

#include "headers.h"

namespace gpupipe {
namespace {

struct Files {
  PyObject_HEAD
  FileSet* set;
};

PyTypeObject* g_files = nullptr;  // set once, when the module is imported

FileSet& set_of(PyObject* self) { return *reinterpret_cast<Files*>(self)->set; }

// The sizes that `read` fills, and the number of pixels above which it writes none.
struct Sizes {
  Buffer buffer;
  long long max_pixels;

  double* row(size_t n) const { return reinterpret_cast<double*>(buffer.bytes()) + 2 * n; }

  // Writes the size of a plain image. Returns false for a file that it leaves to Python.
  bool write(size_t n, bool is_plain, const int64_t* size) const {
    const bool is_taken = is_plain && (max_pixels < 0 || size[0] * size[1] <= max_pixels);
    for (int axis = 0; axis < 2; ++axis) row(n)[axis] = is_taken ? double(size[axis]) : 0.0;
    return is_taken;
  }
};

PyObject* read(PyObject* self, PyObject* arguments) {
  FileSet& set = set_of(self);
  Py_ssize_t begin, end;
  PyObject* object;
  Sizes sizes;
  int formats;
  if (!PyArg_ParseTuple(arguments, "nnOLi", &begin, &end, &object, &sizes.max_pixels, &formats) ||
      !sizes.buffer.open(object, PyBUF_WRITABLE | PyBUF_FORMAT, "sizes", 2))
    return nullptr;
  if (begin < 0 || begin > end || size_t(end) > set.count())
    return PyErr_Format(PyExc_IndexError, "there are no files %zd to %zd", begin, end);
  if (!sizes.buffer.has_format("d") ||
      !sizes.buffer.is_packed(2 * Py_ssize_t(set.count()), sizeof(double))) {
    refuse("sizes is not (files, 2) of float64");
    return nullptr;
  }
  long others = 0;
  const auto read_all = [&] {
    for (size_t n = size_t(begin); n < size_t(end); ++n) {
      int64_t size[2];
      const bool is_plain = set.read(n, formats, size);
      others += !sizes.write(n, is_plain, size);
    }
  };
  return run_without_gil(read_all) ? PyLong_FromLong(others) : nullptr;
}

PyObject* take(PyObject* self, PyObject* number) {
  FileSet& set = set_of(self);
  const Py_ssize_t n = PyLong_AsSsize_t(number);
  if (n == -1 && PyErr_Occurred()) return nullptr;
  if (n < 0 || size_t(n) >= set.count())
    return PyErr_Format(PyExc_IndexError, "there is no file %zd", n);
  Part& part = set[size_t(n)];
  if (part.error() || !part.data()) Py_RETURN_NONE;
  return take_bytes(&part);
}

void free_files(PyObject* self) {
  PyTypeObject* const type = Py_TYPE(self);
  delete reinterpret_cast<Files*>(self)->set;
  PyObject_Free(self);
  Py_DECREF(type);
}

PyObject* create_type() {
  static PyMethodDef methods[] = {
      {"read", read, METH_VARARGS,
       "read(begin, end, sizes, max_pixels, formats) -> int\n\n"
       "Read these files without the GIL. Write to their rows of `sizes`, float64 (files, 2), the\n"
       "[height, width] that read_plain_sizes returns, of up to `max_pixels` where that is not\n"
       "negative; [0, 0] of all others, and of what cannot be read. Return how many others there\n"
       "are."},
      {"take", take, METH_O,
       "take(n)\n\n"
       "Return the bytes of a file as a buffer, and drop them here; None if there are none."},
      {nullptr, nullptr, 0, nullptr},
  };
  static PyType_Slot slots[] = {
      {Py_tp_methods, methods},
      {Py_tp_dealloc, reinterpret_cast<void*>(free_files)},
      {Py_tp_doc, const_cast<char*>("Files, which are read many at once.")},
      {0, nullptr},
  };
  static PyType_Spec spec = {"gpupipe._kernels.Files", sizeof(Files), 0,
                             Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, slots};
  return PyType_FromSpec(&spec);
}

}  // namespace

bool FileSet::open(PyObject* arguments) {
  const char* folder;
  Py_ssize_t folder_size;
  PyObject *names, *offsets, *rows;
  if (!PyArg_ParseTuple(arguments, "y#OOO", &folder, &folder_size, &names, &offsets, &rows) ||
      !names_.open(names, "the names", 1) || !offsets_.open(offsets, "the offsets", 1) ||
      !rows_.open(rows, "the rows", 1))
    return false;
  folder_.assign(folder, size_t(folder_size));
  count_ = size_t(rows_.rows());
  parts_.reset(new Part[count_]);
  for (size_t n = 0; n < count_; ++n) {
    const int64_t row = *rows_[Py_ssize_t(n)];
    if (row < 0 || row >= offsets_.rows() - 1) {
      PyErr_Format(PyExc_IndexError, "there is no row %lld", static_cast<long long>(row));
      return false;
    }
    const int64_t begin = *offsets_[row], end = *offsets_[row + 1];
    if (begin < 0 || end < begin || end > names_.rows())
      return refuse("an offset is not inside the names");
  }
  return true;
}

std::string FileSet::make_path(size_t n) const {
  const int64_t row = *rows_[Py_ssize_t(n)], begin = *offsets_[row], end = *offsets_[row + 1];
  const bool is_absolute = end > begin && *names_[begin] == '/';
  std::string path = is_absolute ? std::string() : folder_;
  return path.append(reinterpret_cast<const char*>(names_[begin]), size_t(end - begin));
}

bool FileSet::read(size_t n, int formats, int64_t* height_width) {
  parts_[n].set_path(make_path(n));
  parts_[n].run();
  return !parts_[n].error() && parts_[n].data() &&
         read_plain_size(parts_[n].data(), parts_[n].size(), formats, height_width);
}

FileSet* get_files(PyObject* object) {
  if (Py_TYPE(object) == g_files) return &set_of(object);
  PyErr_SetString(PyExc_TypeError, "this is no result of open_files()");
  return nullptr;
}

bool create_files_type() {
  if (!g_files) g_files = reinterpret_cast<PyTypeObject*>(create_type());
  return g_files != nullptr;
}

PyObject* open_files(PyObject*, PyObject* arguments) {
  return catch_errors([=]() -> PyObject* {
    std::unique_ptr<FileSet> set(new FileSet);
    if (!set->open(arguments)) return nullptr;
    auto* const files = PyObject_New(Files, g_files);
    if (!files) return nullptr;
    files->set = set.release();
    return reinterpret_cast<PyObject*>(files);
  });
}

}  // namespace gpupipe
