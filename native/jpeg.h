// Decodes a window of a JPEG, and encodes JPEGs, with libjpeg-turbo. For gpupipe._jpeg; needs no
// Python.
#pragma once

#include <cstddef>
#include <cstdint>

namespace gpupipe {

// Where the pixels of a whole image go: rows of packed pixels, `stride` bytes from row to row.
struct JpegTarget {
  uint8_t* pixels;
  int64_t stride;
  int height, width, channels;
};

// The part of an image that is needed, inside the image and not empty.
struct JpegWindow {
  int top, left, height, width;
};

// Writes the pixels of a window to their places in the target, the same to the bit as a decode of
// the whole image with the exact discrete cosine transform and upsampling. Pixels beside the window
// may change too; they hold no particular values.
//
// Returns false if the whole image has to be decoded: several scans, another number of components,
// another size than the target's, or any warning or error. The target may have changed then.
// Otherwise a decode of the whole image would also accept the file: after the window, it has
// nothing but entropy-coded data and restart markers up to its end marker.
bool decode_jpeg_window(const uint8_t* data, size_t size, const JpegWindow& window,
                        const JpegTarget& target);

// Returns how many bytes a JPEG of such an image may take at most, as libjpeg-turbo computes it.
size_t find_max_jpeg_size(int height, int width, int channels);

// Encodes an image as a JPEG with 4:2:0 chroma, as torchvision and Pillow do by default. The
// quality is 1 to 100. Returns the size of the JPEG; 0 if it was not encoded, such as for a side
// above 65500 pixels.
size_t encode_jpeg(const JpegTarget& image, int quality, uint8_t* data, size_t max_size);

}  // namespace gpupipe
