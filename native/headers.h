// Reads the size of an image from its header.
#pragma once

#include <cstddef>
#include <cstdint>

namespace gpupipe {

// Writes [height, width] of a plain JPEG of one scan without EXIF; [0, 0], and returns false, for
// other files.
bool read_plain_size(const uint8_t* data, size_t size, int64_t* height_width);

}  // namespace gpupipe
