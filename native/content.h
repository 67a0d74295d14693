// The input of a program.
#pragma once

#include "channels.h"
#include "stage.h"

namespace gpupipe {

// The input of a program: the bytes of a file, (bytes,) of uint8, or pixels, (H, W, C).
class Content {
 public:
  // Returns false, with an exception set, if the object is no buffer.
  bool read(PyObject* object) {
    if (!buffer_.open(object, PyBUF_STRIDES | PyBUF_FORMAT)) return false;
    const bool is_float = buffer_.has_format("f");
    if (!is_float && !buffer_.has_format("B")) return true;
    const Py_ssize_t item = buffer_.item_size();
    if (buffer_.axes() == 1) {
      if (!is_float && buffer_.stride(0) == 1) set_file(buffer_.bytes(), size_t(buffer_.side(0)));
      return true;
    }
    if (buffer_.axes() != 3) return true;
    const Py_ssize_t height = buffer_.side(0), width = buffer_.side(1), channels = buffer_.side(2);
    if (height < 1 || width < 1 || height > kMaxSide || width > kMaxSide || channels < 1 ||
        channels > kMaxChannels)
      return true;
    const bool is_planar = channels > 1 && buffer_.stride(2) != item &&
                           (width == 1 || buffer_.stride(1) == item);
    const Py_ssize_t pixel = (is_planar ? 1 : channels) * item;
    const bool is_broadcast = channels > 1 && buffer_.stride(2) == 0;
    if (is_broadcast || (channels > 1 && !is_planar && buffer_.stride(2) != item) ||
        (width > 1 && buffer_.stride(1) != pixel) ||
        (height > 1 && buffer_.stride(0) < width * pixel))
      return true;
    const Py_ssize_t plane = is_planar ? buffer_.stride(2) : Image::kInterleaved;
    const Py_ssize_t address = reinterpret_cast<Py_ssize_t>(buffer_.bytes());
    if ((address | buffer_.stride(0) | plane) % item) return true;  // floats are read as such
    image_ = {buffer_.bytes(), int64_t{buffer_.stride(0)}, int(height), int(width),
              int(channels),   int(item),                  false,       plane};
    return true;
  }

  // Takes the bytes of a file, which must live until the next call, or as long as this object.
  void set_file(uint8_t* data, size_t size) {
    image_ = Image();
    if (size > 0 && size <= size_t(INT32_MAX))
      image_ = {data, int64_t(size), 1, int(size), 0, 1, false};
  }

  // Pixels may be planes.
  const Image& image() const { return image_; }

  // Whether stages may run on it. If not, its dtype or its strides are unusual.
  bool is_image() const { return image_.pixels != nullptr; }

 private:
  Buffer buffer_;
  Image image_;
};

// Runs a stage on one sample, in the memory of the thread for all programs that it runs. Returns
// false if it cannot be done here.
bool run_row(const Stage& stage, int row, const Content& content, Image* image);

}  // namespace gpupipe
