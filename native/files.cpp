// Reads files and their sizes without the GIL, many in one call.
#include "buffer.h"
#include "crc32.h"
#include "stage.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <string>

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

// The number for a FIFO, a socket or a device, which has no errno of its own.
constexpr int kNotRegular = -1;

// A part of a file, and what came of reading it.
class Part {
 public:
  Part() = default;
  Part(const Part&) = delete;
  Part& operator=(const Part&) = delete;
  ~Part() { std::free(data_); }

  // Takes a tuple (path, offset, length).
  bool parse(PyObject* tuple) {
    if (!PyTuple_Check(tuple)) return refuse("a part is no tuple (path, offset, length)");
    PyObject *path, *length;
    if (!PyArg_ParseTuple(tuple, "O&LO", PyUnicode_FSConverter, &path, &offset_, &length))
      return false;
    const Reference owner(path);
    path_.assign(PyBytes_AsString(path), size_t(PyBytes_Size(path)));
    if (length != Py_None) length_ = PyLong_AsLongLong(length);
    if (PyErr_Occurred()) return false;
    if (offset_ < 0 || (length != Py_None && length_ < 0))
      return refuse("the offset or the length is negative");
    return true;
  }

  // Reads a whole file instead.
  void set_path(std::string path) { path_ = std::move(path); }

  // Does not touch Python.
  void run() {
    if (path_.find('\0') != std::string::npos) {  // it would end the path
      error_ = EINVAL;
      return;
    }
    // Without O_NONBLOCK, opening a FIFO would wait for a writer.
    const int file = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (file < 0) {
      error_ = errno;
      return;
    }
    error_ = fill(file);
    ::close(file);
  }

  // Returns the bytes, or the number of the error. Gives the bytes away.
  PyObject* take() {
    if (error_) return PyLong_FromLong(error_);
    auto* const bytes = PyObject_New(FileBytes, g_file_bytes);
    if (!bytes) return nullptr;
    bytes->data = data_, bytes->size = Py_ssize_t(received_);
    data_ = nullptr;
    return reinterpret_cast<PyObject*>(bytes);
  }

  // The CRC-32 of the bytes that were read. Does not touch Python.
  uint32_t compute_crc() const { return data_ ? compute_crc32(data_, size_t(received_)) : 0; }

 private:
  int fill(int file) {
    struct stat about;
    if (::fstat(file, &about) != 0) return errno;
    if (!S_ISREG(about.st_mode)) return S_ISDIR(about.st_mode) ? EISDIR : kNotRegular;
    const int64_t length = length_ < 0 ? int64_t(about.st_size) : length_;
    data_ = static_cast<uint8_t*>(std::malloc(length > 0 ? size_t(length) : 1));
    if (!data_) return ENOMEM;
    while (received_ < length) {
      const ssize_t count =
          ::pread(file, data_ + received_, size_t(length - received_), offset_ + received_);
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) return errno;
      if (count == 0) break;
      received_ += count;
    }
    return 0;
  }

  std::string path_;
  int64_t offset_ = 0, length_ = -1, received_ = 0;
  uint8_t* data_ = nullptr;
  int error_ = 0;
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
    PyObject* const bytes = Part::take();
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
    return Py_BuildValue("LL", static_cast<long long>(about_.st_size),
                         changed.tv_sec * 1000000000LL + changed.tv_nsec);
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

PyObject* read_files(PyObject* module, PyObject* parts) { return run_each<Part>(module, parts); }

PyObject* read_files_and_crcs(PyObject* module, PyObject* parts) {
  return run_each<CheckedPart>(module, parts);
}

PyObject* read_paths(PyObject*, PyObject* arguments) {
  const char* folder;
  Py_ssize_t folder_size;
  PyObject *name_object, *offset_object, *row_object;
  RowValues<uint8_t> names;
  RowValues<int64_t> offsets, rows;
  if (!PyArg_ParseTuple(arguments, "y#OOO", &folder, &folder_size, &name_object, &offset_object,
                        &row_object) ||
      !names.open(name_object, "the names", 1) || !offsets.open(offset_object, "the offsets", 1) ||
      !rows.open(row_object, "the rows", 1))
    return nullptr;
  const size_t count = size_t(rows.rows());
  const std::unique_ptr<Part[]> parts(new (std::nothrow) Part[count]);
  if (!parts) return PyErr_NoMemory();
  for (size_t n = 0; n < count; ++n) {
    const int64_t row = *rows[Py_ssize_t(n)];
    if (row < 0 || row >= offsets.rows() - 1) {
      PyErr_Format(PyExc_IndexError, "there is no row %lld", static_cast<long long>(row));
      return nullptr;
    }
    const int64_t begin = *offsets[row], end = *offsets[row + 1];
    if (begin < 0 || end < begin || end > names.rows()) {
      refuse("an offset is not inside the names");
      return nullptr;
    }
  }
  const auto run_all = [&] {
    for (size_t n = 0; n < count; ++n) {
      const int64_t row = *rows[Py_ssize_t(n)], begin = *offsets[row], end = *offsets[row + 1];
      const bool is_absolute = end > begin && *names[begin] == '/';
      std::string path(folder, is_absolute ? 0 : size_t(folder_size));
      path.append(reinterpret_cast<const char*>(names[begin]), size_t(end - begin));
      parts[n].set_path(std::move(path));
      parts[n].run();
    }
  };
  if (!run_without_gil(run_all)) return nullptr;
  Reference results(PyList_New(Py_ssize_t(count)));
  for (size_t n = 0; results && n < count; ++n) {
    PyObject* const result = parts[n].take();
    if (!result) return nullptr;
    PyList_SetItem(results.get(), Py_ssize_t(n), result);
  }
  return results.release();
}

PyObject* stat_files(PyObject* module, PyObject* paths) {
  return run_each<FileState>(module, paths);
}

}  // namespace gpupipe
