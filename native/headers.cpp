// Reads the headers of JPEGs and PNGs without the GIL, many in one call. gpupipe/decoders/image_header.py
// says what the parts of a header mean, and reads all headers that this file leaves to it.
#include "headers.h"

#include "buffer.h"
#include "plain_png.h"
#include "without_gil.h"

#include <algorithm>

namespace gpupipe {
namespace {

constexpr uint8_t kScan = 0xDA, kBaseline = 0xC0, kExtended = 0xC1;

bool is_one_of(int value, std::initializer_list<int> values) {
  return std::find(values.begin(), values.end(), value) != values.end();
}

// The bytes of a file, of which reading past the end is remembered.
class Bytes {
 public:
  Bytes(const uint8_t* data, size_t size) : data_(data), size_(size) {}

  int operator[](size_t at) {
    if (at < size_) return data_[at];
    is_past_end_ = true;
    return 0;
  }
  int big_endian(size_t at) { return (*this)[at] << 8 | (*this)[at + 1]; }
  bool has(size_t at, const char* text, size_t length) const {
    return at + length <= size_ && std::memcmp(data_ + at, text, length) == 0;
  }
  size_t size() const { return size_; }
  bool is_past_end() const { return is_past_end_; }

 private:
  const uint8_t* data_;
  size_t size_;
  bool is_past_end_ = false;
};

// The header of a plain JPEG of one scan without EXIF.
struct JpegHeader {
  int height = 0, width = 0;

  // Returns false for all other files.
  bool parse(Bytes bytes) {
    if (!bytes.has(0, "\xff\xd8\xff", 3)) return false;
    size_t at = 2, frame = 0;
    bool has_jfif = false;
    int adobe = -1, length = 0;
    for (;; at += 2 + size_t(length)) {
      if (bytes[at] != 0xFF) return false;
      const int marker = bytes[at + 1];
      length = bytes.big_endian(at + 2);
      if (bytes.is_past_end()) return false;
      if (marker == kScan) break;
      if (length < 2) return false;
      if (marker == kBaseline || marker == kExtended) {
        if (frame) return false;
        frame = at;
      } else if (marker == 0xE0) {
        has_jfif = has_jfif || bytes.has(at + 4, "JFIF", 5);
      } else if (marker == 0xE1 && bytes.has(at + 4, "Exif\0", 6)) {
        return false;
      } else if (marker == 0xEE && bytes.has(at + 4, "Adobe", 5)) {
        if (length != 14) return false;
        adobe = bytes[at + 15];
      } else if (!is_one_of(marker, {0xC4, 0xDB, 0xDD, 0xFE}) && (marker < 0xE0 || marker > 0xEF)) {
        return false;
      }
    }
    if (!frame || !is_plain(bytes, frame, has_jfif, adobe)) return false;
    height = bytes.big_endian(frame + 5), width = bytes.big_endian(frame + 7);
    const size_t end = at + 2 + size_t(length) + 1;  // these bytes suffice for the header
    const int components = bytes[frame + 9];
    return bytes[at + 4] == components && length == 6 + 2 * components && height && width &&
           bytes.size() >= end && !bytes.is_past_end();
  }

 private:
  // Whether all decoders agree on the colours of a frame: 8 bits, a usual subsampling, gray or
  // YCbCr.
  static bool is_plain(Bytes& bytes, size_t frame, bool has_jfif, int adobe) {
    const int components = bytes[frame + 9];
    if (bytes[frame + 4] != 8 || bytes.big_endian(frame + 2) != 8 + 3 * components) return false;
    const int luma = bytes[frame + 11];
    if (components == 1) return is_one_of(luma, {0x11, 0x21, 0x12, 0x22});
    if (components != 3 || !is_one_of(adobe, {-1, 1})) return false;
    const bool are_numbered =
        bytes[frame + 10] == 1 && bytes[frame + 13] == 2 && bytes[frame + 16] == 3;
    return (has_jfif || adobe == 1 || are_numbered) &&
           is_one_of(luma, {0x11, 0x21, 0x12, 0x22, 0x41}) && bytes[frame + 14] == 0x11 &&
           bytes[frame + 17] == 0x11;
  }
};

}  // namespace

bool read_plain_size(const uint8_t* data, size_t size, int formats, int64_t* height_width) {
  JpegHeader jpeg;
  PngHeader png;
  height_width[0] = height_width[1] = 0;
  if ((formats & kPlainJpeg) && jpeg.parse({data, size}))
    height_width[0] = jpeg.height, height_width[1] = jpeg.width;
  else if ((formats & kPlainPng) && read_plain_png(data, size, &png))
    height_width[0] = png.height, height_width[1] = png.width;
  return height_width[0] > 0;
}

// Returns int64 [height, width] of each file as bytes; [0, 0] of those that are left to Python.
PyObject* read_plain_sizes(PyObject*, PyObject* arguments) {
  PyObject* files;
  int formats;
  if (!PyArg_ParseTuple(arguments, "Oi", &files, &formats)) return nullptr;
  const Reference objects(PySequence_Tuple(files));  // opening a buffer may change a list
  if (!objects) return nullptr;
  const size_t count = size_t(PyTuple_Size(objects.get()));
  const std::unique_ptr<Buffer[]> buffers(new (std::nothrow) Buffer[count]);
  if (!buffers) return PyErr_NoMemory();
  for (size_t n = 0; n < count; ++n)
    if (!buffers[n].open(PyTuple_GetItem(objects.get(), Py_ssize_t(n)), PyBUF_SIMPLE))
      return nullptr;
  constexpr size_t kItem = 2 * sizeof(int64_t);
  Reference sizes(PyBytes_FromStringAndSize(nullptr, Py_ssize_t(count * kItem)));
  if (!sizes) return nullptr;
  char* const to = PyBytes_AsString(sizes.get());
  const bool is_read = run_without_gil([&] {
    for (size_t n = 0; n < count; ++n) {
      int64_t size[2];
      read_plain_size(buffers[n].bytes(), buffers[n].size(), formats, size);
      std::memcpy(to + n * kItem, size, kItem);
    }
  });
  return is_read ? sizes.release() : nullptr;
}

}  // namespace gpupipe
