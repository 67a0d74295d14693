// Plain PNGs: their headers, which both gpupipe._kernels and gpupipe._png read, and their decoder,
// which gpupipe._png has. Needs no Python.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace gpupipe {

// The types of colours, as the IHDR of a PNG names them.
enum PngColor { kPngGray = 0, kPngRgb = 2, kPngPalette = 3, kPngGrayAlpha = 4, kPngRgba = 6 };

struct PngHeader {
  int height = 0, width = 0, depth = 0, color = 0;

  // Stored values of a pixel: an index counts as one.
  int channels() const {
    return color == kPngRgba ? 4 : color == kPngRgb ? 3 : color == kPngGrayAlpha ? 2 : 1;
  }
};

// The chunks of a PNG, one after the other.
class PngChunks {
 public:
  PngChunks(const uint8_t* data, size_t size) : data_(data), left_(size) {}

  // Goes on to the next chunk. Returns false if the file ends before the chunk does.
  bool next() {
    if (left_ < 12) return false;
    size_ = read_number(data_);
    if (size_ > left_ - 12) return false;
    name_ = data_ + 4;
    data_ += 12 + size_, left_ -= 12 + size_;
    return true;
  }
  bool is(const char* name) const { return std::memcmp(name_, name, 4) == 0; }
  bool is(const char* name, size_t size) const { return is(name) && size_ == size; }
  size_t size() const { return size_; }
  const uint8_t* content() const { return name_ + 4; }

  static uint32_t read_number(const uint8_t* at) {
    return uint32_t{at[0]} << 24 | uint32_t{at[1]} << 16 | uint32_t{at[2]} << 8 | at[3];
  }

 private:
  const uint8_t *data_, *name_ = nullptr;
  size_t left_, size_ = 0;
};

constexpr size_t kMaxPngText = size_t{1} << 20;      // bytes of a file
constexpr uint32_t kMaxPngSide = 1000000;            // of libpng

// Whether a chunk between IHDR and IEND is one that changes no pixel and that every decoder takes,
// whatever it contains. Counts the bytes of texts.
inline bool is_harmless_png_chunk(const PngChunks& chunk, bool has_pixels, size_t* text) {
  if (chunk.is("tEXt")) return (*text += chunk.size()) <= kMaxPngText;
  if (chunk.is("tIME", 7)) return true;
  return !has_pixels && (chunk.is("gAMA", 4) || chunk.is("cHRM", 32) || chunk.is("sRGB", 1) ||
                         chunk.is("pHYs", 9) || chunk.is("sBIT") || chunk.is("bKGD"));
}

// Reads the header of a plain PNG: up to 8 bits a value, not interlaced, and of no other chunks
// than those that gpupipe::decode_png and Pillow take alike. Returns false for all other files.
// gpupipe/decoders/image_header.py says what a plain PNG is; these are some of those.
inline bool read_plain_png(const uint8_t* data, size_t size, PngHeader* header) {
  if (size < 8 || std::memcmp(data, "\x89PNG\r\n\x1a\n", 8) != 0) return false;
  PngChunks chunk(data + 8, size - 8);
  if (!chunk.next() || !chunk.is("IHDR", 13)) return false;
  const uint8_t* const ihdr = chunk.content();
  const uint32_t width = PngChunks::read_number(ihdr), height = PngChunks::read_number(ihdr + 4);
  const int depth = ihdr[8], color = ihdr[9];
  if (!width || !height || width > kMaxPngSide || height > kMaxPngSide || ihdr[10] || ihdr[11] ||
      ihdr[12])
    return false;
  const bool can_be_packed = color == kPngGray || color == kPngPalette;
  if (depth != 8 && !(can_be_packed && (depth == 1 || depth == 2 || depth == 4))) return false;
  if (!can_be_packed && color != kPngRgb && color != kPngGrayAlpha && color != kPngRgba)
    return false;
  *header = {int(height), int(width), depth, color};
  bool has_palette = false, has_pixels = false, is_in_pixels = false;
  size_t text = 0;
  while (chunk.next()) {
    if (chunk.is("IEND")) return chunk.size() == 0 && has_pixels;
    if (chunk.is("IDAT")) {
      if (has_pixels && !is_in_pixels) return false;
      if (color == kPngPalette && !has_palette) return false;
      has_pixels = is_in_pixels = true;
      continue;
    }
    is_in_pixels = false;
    if (chunk.is("PLTE")) {
      const size_t entries = chunk.size() / 3;
      if (color != kPngPalette || has_palette || has_pixels || chunk.size() % 3 || !entries ||
          entries > size_t{1} << depth)
        return false;
      has_palette = true;
    } else if (!is_harmless_png_chunk(chunk, has_pixels, &text)) {
      return false;
    }
  }
  return false;
}

// Where the pixels of a whole image go: rows of packed pixels of 1 or 3 channels, `stride` bytes
// from row to row.
struct PngTarget {
  uint8_t* pixels;
  int64_t stride;
  int height, width, channels;
};

// Writes the pixels of a plain PNG to the target, the same to the bit as those that Pillow converts
// to "L" or "RGB". `row` is memory of 4 bytes for each pixel of a row.
//
// Returns false if another decoder has to decode the file: it is not plain, or has another size
// than the target, or libpng has a warning or an error about any part of it. The target may have
// changed then.
bool decode_png(const uint8_t* data, size_t size, const PngTarget& target, uint8_t* row);

}  // namespace gpupipe
