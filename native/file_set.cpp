// The function `open_files` of the module, and the type Files.
#include "file_set.h"

#include "headers.h"
#include "stage.h"

namespace gpupipe {
namespace {

struct Files {
  PyObject_HEAD
  FileSet* set;
};

PyTypeObject* g_files = nullptr;  // set once, when the module is imported

FileSet& set_of(PyObject* self) { return *reinterpret_cast<Files*>(self)->set; }

PyObject* read(PyObject* self, PyObject* arguments) {
  FileSet& set = set_of(self);
  Py_ssize_t begin, end;
  if (!PyArg_ParseTuple(arguments, "nn", &begin, &end)) return nullptr;
  if (begin < 0 || begin > end || size_t(end) > set.count())
    return PyErr_Format(PyExc_IndexError, "there are no files %zd to %zd", begin, end);
  if (!run_without_gil([&] { set.read(size_t(begin), size_t(end)); })) return nullptr;
  constexpr size_t kItem = 2 * sizeof(int64_t);
  return PyBytes_FromStringAndSize(reinterpret_cast<const char*>(set.sizes() + 2 * begin),
                                   Py_ssize_t(size_t(end - begin) * kItem));
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
       "read(begin, end) -> bytes\n\n"
       "Read these files without the GIL. Return int64 [height, width] of each plain JPEG of one\n"
       "scan without EXIF; [0, 0] of all others, and of what cannot be read."},
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
  PyObject *name_object, *offset_object, *row_object;
  RowValues<uint8_t> names;
  RowValues<int64_t> offsets, rows;
  if (!PyArg_ParseTuple(arguments, "y#OOO", &folder, &folder_size, &name_object, &offset_object,
                        &row_object) ||
      !names.open(name_object, "the names", 1) || !offsets.open(offset_object, "the offsets", 1) ||
      !rows.open(row_object, "the rows", 1))
    return false;
  count_ = size_t(rows.rows());
  parts_.reset(new Part[count_]);
  sizes_.resize(2 * count_);
  for (size_t n = 0; n < count_; ++n) {
    const int64_t row = *rows[Py_ssize_t(n)];
    if (row < 0 || row >= offsets.rows() - 1) {
      PyErr_Format(PyExc_IndexError, "there is no row %lld", static_cast<long long>(row));
      return false;
    }
    const int64_t begin = *offsets[row], end = *offsets[row + 1];
    if (begin < 0 || end < begin || end > names.rows())
      return refuse("an offset is not inside the names");
    const bool is_absolute = end > begin && *names[begin] == '/';
    std::string path(folder, is_absolute ? 0 : size_t(folder_size));
    path.append(reinterpret_cast<const char*>(names[begin]), size_t(end - begin));
    parts_[n].set_path(std::move(path));
  }
  return true;
}

void FileSet::read(size_t begin, size_t end) {
  for (size_t n = begin; n < end; ++n) {
    parts_[n].run();
    if (!parts_[n].error() && parts_[n].data())
      read_plain_size(parts_[n].data(), parts_[n].size(), &sizes_[2 * n]);
  }
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
  std::unique_ptr<FileSet> set;
  try {
    set.reset(new FileSet);
    if (!set->open(arguments)) return nullptr;
  } catch (...) {
    set_python_error(std::current_exception());
    return nullptr;
  }
  auto* const files = PyObject_New(Files, g_files);
  if (!files) return nullptr;
  files->set = set.release();
  return reinterpret_cast<PyObject*>(files);
}

}  // namespace gpupipe
