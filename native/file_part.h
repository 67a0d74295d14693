// A part of a file that is read without the GIL.
#pragma once

#include "buffer.h"
#include "crc32.h"
#include "without_gil.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <string>
#include <utility>

namespace gpupipe {

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

  // Reads a whole file instead, unless there are bytes of one.
  void set_path(std::string path) { path_ = std::move(path); }

  // Does not touch Python.
  void run() {
    read();
    std::string().swap(path_);  // here, and not where the GIL is held
  }

  uint8_t* data() const { return data_; }
  size_t size() const { return size_t(received_); }
  int error() const { return error_; }

  // Gives the bytes away. The caller frees them.
  uint8_t* release() {
    received_ = 0;
    return std::exchange(data_, nullptr);
  }

  // The CRC-32 of the bytes that were read. Does not touch Python.
  uint32_t compute_crc() const { return data_ ? compute_crc32(data_, size_t(received_)) : 0; }

 private:
  void read() {
    if (data_) return;
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
      if (count == 0) break;
      if (count < 0) {
        const int error = errno;
        std::free(release());
        return error;
      }
      received_ += count;
    }
    return 0;
  }

  std::string path_;
  int64_t offset_ = 0, length_ = -1, received_ = 0;
  uint8_t* data_ = nullptr;
  int error_ = 0;
};

// Returns the bytes of a part as a buffer of Python, or the number of the error. Gives the bytes
// away.
PyObject* take_bytes(Part* part);

}  // namespace gpupipe
