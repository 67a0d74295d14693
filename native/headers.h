// Reads the size of an image from its header.
#pragma once

#include <cstddef>
#include <cstdint>

namespace gpupipe {

// Formats of files, as bits of a number.
enum PlainFormat { kPlainJpeg = 1, kPlainPng = 2 };

// Writes [height, width] of a plain JPEG of one scan without EXIF, or of a plain PNG as in
// plain_png.h, if its format is one of `formats`; [0, 0], and returns false, for other files.
bool read_plain_size(const uint8_t* data, size_t size, int formats, int64_t* height_width);

}  // namespace gpupipe
