// Reads files and their sizes without the GIL, many in one call.
#include "file_part.h"

namespace gpupipe {
namespace {

// The bytes of a file, as a buffer of Python that can be written to.
struct FileBytes {
  PyObject_HEAD
  uint8_t* data;
  Py_ssize_t size;
};

int get_buffer(PyObject* self, Py_buffer* view, int flags) {
  auto* const bytes = reinterpret_cast<FileBytes*>(self);
  return PyBuffer_FillInfo(view, self, bytes->data, bytes->size, 0, flags);
}

void free_bytes(PyObject* self) {
  PyTypeObject* const type = Py_TYPE(self);
  std::free(reinterpret_cast<FileBytes*>(self)->data);
  PyObject_Free(self);
  Py_DECREF(type);
}

PyObject* create_type() {
  static PyType_Slot slots[] = {
      {Py_bf_getbuffer, reinterpret_cast<void*>(get_buffer)},
      {Py_tp_dealloc, reinterpret_cast<void*>(free_bytes)},
      {Py_tp_doc, const_cast<char*>("The bytes of a file, as a buffer.")},
      {0, nullptr},
  };
  static PyType_Spec spec = {"gpupipe._kernels.FileBytes", sizeof(FileBytes), 0,
                             Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, slots};
  return PyType_FromSpec(&spec);
}

PyTypeObject* g_file_bytes = nullptr;  // set once, when the module is imported

// A part of a file, for run_each.
class BarePart : public Part {
 public:
  PyObject* take() { return take_bytes(this); }
};

// A part of a file, and the CRC-32 of its bytes.
class CheckedPart : public Part {
 public:
  void run() {
    Part::run();
    crc_ = compute_crc();
  }

  // Returns a tuple of the bytes and their CRC-32, or the number of the error.
  PyObject* take() {
    PyObject* const bytes = take_bytes(this);
    if (!bytes || PyLong_Check(bytes)) return bytes;
    return Py_BuildValue("NI", bytes, static_cast<unsigned int>(crc_));
  }

 private:
  uint32_t crc_ = 0;
};

// A path, and what is seen of the file.
class FileState {
 public:
  FileState() = default;
  FileState(const FileState&) = delete;
  FileState& operator=(const FileState&) = delete;
  ~FileState() { Py_XDECREF(path_); }

  bool parse(PyObject* path) { return PyUnicode_FSConverter(path, &path_) != 0; }

  // Does not touch Python.
  void run() { is_seen_ = ::stat(PyBytes_AsString(path_), &about_) == 0; }

  PyObject* take() const {
    if (!is_seen_) Py_RETURN_NONE;
#ifdef __APPLE__
    const timespec changed = about_.st_mtimespec;
#else
    const timespec changed = about_.st_mtim;
#endif
    // Of a time before 1678 or after 2262, as file systems have some, only the last 64 bits.
    const uint64_t ns = uint64_t(changed.tv_sec) * 1000000000u + uint64_t(changed.tv_nsec);
    return Py_BuildValue("LL", static_cast<long long>(about_.st_size), static_cast<long long>(ns));
  }

 private:
  PyObject* path_ = nullptr;
  struct stat about_;
  bool is_seen_ = false;
};

}  // namespace

bool create_file_types() {
  if (!g_file_bytes) g_file_bytes = reinterpret_cast<PyTypeObject*>(create_type());
  return g_file_bytes != nullptr;
}

PyObject* take_bytes(Part* part) {
  if (part->error()) return PyLong_FromLong(part->error());
  auto* const bytes = PyObject_New(FileBytes, g_file_bytes);
  if (!bytes) return nullptr;
  bytes->size = Py_ssize_t(part->size());
  bytes->data = part->release();
  return reinterpret_cast<PyObject*>(bytes);
}

PyObject* read_files(PyObject* module, PyObject* parts) {
  return run_each<BarePart>(module, parts);
}

PyObject* read_files_and_crcs(PyObject* module, PyObject* parts) {
  return run_each<CheckedPart>(module, parts);
}

PyObject* stat_files(PyObject* module, PyObject* paths) {
  return run_each<FileState>(module, paths);
}

}  // namespace gpupipe
