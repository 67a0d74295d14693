#include "plain_png.h"

#include <algorithm>
#include <csetjmp>

#include <png.h>

namespace gpupipe {
namespace {

// The bytes of a file that libpng has not read yet.
struct Source {
  const uint8_t* at;
  size_t left;
};

// Any warning or error ends the decoding: another decoder decides.
[[noreturn]] void leave(png_structp png, png_const_charp) { png_longjmp(png, 1); }

void read_bytes(png_structp png, png_bytep to, size_t count) {
  auto* const source = static_cast<Source*>(png_get_io_ptr(png));
  if (count > source->left) leave(png, "");
  std::memcpy(to, source->at, count);
  source->at += count, source->left -= count;
}

// The luma of ITU-R BT.601, as Pillow computes it.
uint8_t find_luma(const uint8_t* rgb) {
  return uint8_t((rgb[0] * 19595 + rgb[1] * 38470 + rgb[2] * 7471 + 0x8000) >> 16);
}

// The pixel of each stored number: an index of a palette, or a gray of fewer bits than 8.
struct Lookup {
  uint8_t pixels[256][3];
  int count;  // of numbers that have a pixel
};

void fill_lookup(png_structp png, png_infop info, const PngHeader& header, Lookup* lookup) {
  lookup->count = 1 << header.depth;
  if (header.color == kPngGray) {
    for (int n = 0; n < lookup->count; ++n)
      std::memset(lookup->pixels[n], n * 255 / (lookup->count - 1), 3);
    return;
  }
  png_colorp palette = nullptr;
  int entries = 0;
  png_get_PLTE(png, info, &palette, &entries);
  lookup->count = std::min(entries, lookup->count);
  for (int n = 0; n < lookup->count; ++n) {
    const uint8_t rgb[] = {palette[n].red, palette[n].green, palette[n].blue};
    std::memcpy(lookup->pixels[n], rgb, 3);
  }
}

// Returns false if a number has no pixel.
bool look_up(const Lookup& lookup, const uint8_t* row, int width, int channels, uint8_t* to) {
  if (width && *std::max_element(row, row + width) >= lookup.count) return false;
  if (channels == 1)
    for (int n = 0; n < width; ++n) to[n] = lookup.pixels[row[n]][0];
  else
    for (int n = 0; n < width; ++n) std::memcpy(to + 3 * n, lookup.pixels[row[n]], 3);
  return true;
}

// Converts a row of 1 to 4 values a pixel, and drops alpha.
void convert_row(const uint8_t* row, int stored, int width, int channels, uint8_t* to) {
  if (stored < 3 && channels == 1)
    for (int n = 0; n < width; ++n) to[n] = row[n * stored];
  else if (stored < 3)
    for (int n = 0; n < width; ++n) std::memset(to + 3 * n, row[n * stored], 3);
  else if (channels == 1)
    for (int n = 0; n < width; ++n) to[n] = find_luma(row + n * stored);
  else
    for (int n = 0; n < width; ++n) std::memcpy(to + 3 * n, row + n * stored, 3);
}

// Leaves at the first warning or error. All variables are trivial: longjmp destroys nothing.
bool decode(png_structp png, png_infop info, const PngHeader& header, const PngTarget& target,
            Lookup* lookup, uint8_t* row) {
#ifdef PNG_HANDLE_AS_UNKNOWN_SUPPORTED
  // Chunks that change no pixel are read for their checksums only.
  png_set_keep_unknown_chunks(png, PNG_HANDLE_CHUNK_NEVER, nullptr, -1);
#endif
  png_read_info(png, info);
  const bool is_looked_up = header.depth < 8 || header.color == kPngPalette;
  if (is_looked_up) {
    fill_lookup(png, info, header, lookup);
    if (header.color == kPngPalette && target.channels == 1)
      for (int n = 0; n < lookup->count; ++n) lookup->pixels[n][0] = find_luma(lookup->pixels[n]);
  }
  if (header.depth < 8) png_set_packing(png);
  png_read_update_info(png, info);
  const int stored = header.channels();
  if (png_get_rowbytes(png, info) != size_t(header.width) * size_t(stored)) return false;
  const bool is_same = !is_looked_up && stored == target.channels;
  for (int n = 0; n < header.height; ++n) {
    uint8_t* const to = target.pixels + n * target.stride;
    png_read_row(png, is_same ? to : row, nullptr);
    if (is_looked_up && !look_up(*lookup, row, header.width, target.channels, to)) return false;
    if (!is_looked_up && !is_same) convert_row(row, stored, header.width, target.channels, to);
  }
  png_read_end(png, nullptr);
  return true;
}

bool run_libpng(Source source, const PngHeader& header, const PngTarget& target, uint8_t* row) {
  Lookup lookup;
  png_structp png = png_create_read_struct(PNG_LIBPNG_VER_STRING, nullptr, leave, leave);
  if (!png) return false;
  png_infop info = png_create_info_struct(png);
  if (!info || setjmp(png_jmpbuf(png))) {
    png_destroy_read_struct(&png, &info, nullptr);
    return false;
  }
  png_set_read_fn(png, &source, read_bytes);
  const bool is_decoded = decode(png, info, header, target, &lookup, row);
  png_destroy_read_struct(&png, &info, nullptr);
  return is_decoded;
}

}  // namespace

bool decode_png(const uint8_t* data, size_t size, const PngTarget& target, uint8_t* row) {
  PngHeader header;
  return read_plain_png(data, size, &header) && header.height == target.height &&
         header.width == target.width && run_libpng({data, size}, header, target, row);
}

}  // namespace gpupipe
