#include "jpeg.h"

#include <algorithm>
#include <csetjmp>
#include <cstdio>
#include <cstring>

#include <jpeglib.h>

// Before 2.0.6, jpeg_skip_scanlines() has faults that its release notes name.
#if !defined(LIBJPEG_TURBO_VERSION_NUMBER) || LIBJPEG_TURBO_VERSION_NUMBER < 2001000
#error "gpupipe._jpeg needs libjpeg-turbo 2.1 or newer"
#endif

namespace gpupipe {
namespace {

constexpr int kMargin = 2;  // columns beside the window that the upsampling of its edges reads
constexpr int kRows = 16;   // rows per call: the largest block has them; it returns fewer

constexpr uint8_t kEndOfImage = 0xD9;  // the marker EOI, without the 0xFF before it

// The markers RST0 to RST7.
bool is_restart(int marker) { return (marker & 0xF8) == 0xD0; }

// Any warning or error ends the decoding: the decoder of the whole image decides.
struct ErrorManager {
  jpeg_error_mgr base;
  std::jmp_buf jump;
};

[[noreturn]] void leave(j_common_ptr decoder) {
  std::longjmp(reinterpret_cast<ErrorManager*>(decoder->err)->jump, 1);
}

void leave_at_warning(j_common_ptr decoder, int level) {
  if (level < 0) leave(decoder);
}

void print_nothing(j_common_ptr) {}

// The source is one buffer: what lies after its end is an error.
void start_source(j_decompress_ptr) {}

boolean refuse_to_read_on(j_decompress_ptr decoder) {
  leave(reinterpret_cast<j_common_ptr>(decoder));
}

void skip_bytes(j_decompress_ptr decoder, long count) {
  if (count <= 0) return;
  if (static_cast<unsigned long>(count) > decoder->src->bytes_in_buffer)
    leave(reinterpret_cast<j_common_ptr>(decoder));
  decoder->src->next_input_byte += count;
  decoder->src->bytes_in_buffer -= count;
}

// Whether nothing but entropy-coded data and restart markers lie before the end marker.
bool is_complete(const jpeg_decompress_struct& decoder) {
  const int pending = decoder.unread_marker;
  if (pending == kEndOfImage) return true;
  if (pending != 0 && !is_restart(pending)) return false;
  const uint8_t* at = decoder.src->next_input_byte;
  const uint8_t* const end = at + decoder.src->bytes_in_buffer;
  while (at < end) {
    at = static_cast<const uint8_t*>(std::memchr(at, 0xFF, end - at));
    if (!at) return false;
    while (at < end && *at == 0xFF) ++at;
    if (at == end) return false;
    if (*at == kEndOfImage) return true;
    if (*at != 0 && !is_restart(*at)) return false;
    ++at;
  }
  return false;
}

bool has_one_simple_scan(const jpeg_decompress_struct& decoder, const JpegTarget& target) {
  return int(decoder.image_height) == target.height && int(decoder.image_width) == target.width &&
         !decoder.progressive_mode && !decoder.arith_code && decoder.data_precision == 8 &&
         (decoder.jpeg_color_space == JCS_YCbCr || decoder.jpeg_color_space == JCS_GRAYSCALE) &&
         decoder.comps_in_scan == decoder.num_components;
}

// Leaves at the first warning or error. All variables are trivial: longjmp destroys nothing.
bool decode(jpeg_decompress_struct* decoder, const JpegWindow& window, const JpegTarget& target) {
  if (jpeg_read_header(decoder, TRUE) != JPEG_HEADER_OK) return false;
  if (!has_one_simple_scan(*decoder, target)) return false;
  decoder->out_color_space = target.channels == 3 ? JCS_RGB : JCS_GRAYSCALE;
  decoder->dct_method = JDCT_ISLOW;
  decoder->do_fancy_upsampling = TRUE;
  jpeg_start_decompress(decoder);
  if (decoder->output_components != target.channels) return false;

  JDIMENSION left = std::max(0, window.left - kMargin);
  JDIMENSION width = std::min(target.width, window.left + window.width + kMargin) - left;
  if (int(width) < target.width) jpeg_crop_scanline(decoder, &left, &width);
  const JDIMENSION top = window.top, bottom = window.top + window.height;
  if (top > 0 && jpeg_skip_scanlines(decoder, top) != top) return false;

  uint8_t* const corner = target.pixels + int64_t{left} * target.channels;
  while (decoder->output_scanline < bottom) {
    const JDIMENSION row = decoder->output_scanline, count = std::min<int>(kRows, bottom - row);
    JSAMPROW rows[kRows];
    for (JDIMENSION n = 0; n < count; ++n) rows[n] = corner + (row + n) * target.stride;
    if (jpeg_read_scanlines(decoder, rows, count) == 0) return false;
  }
  return is_complete(*decoder);
}

}  // namespace

bool decode_jpeg_window(const uint8_t* data, size_t size, const JpegWindow& window,
                        const JpegTarget& target) {
  jpeg_decompress_struct decoder;
  ErrorManager errors;
  jpeg_source_mgr source;
  std::memset(&decoder, 0, sizeof(decoder));
  decoder.err = jpeg_std_error(&errors.base);
  errors.base.error_exit = leave;
  errors.base.emit_message = leave_at_warning;
  errors.base.output_message = print_nothing;
  if (setjmp(errors.jump)) {
    jpeg_destroy_decompress(&decoder);
    return false;
  }
  jpeg_create_decompress(&decoder);
  source.next_input_byte = data;
  source.bytes_in_buffer = size;
  source.init_source = start_source;
  source.fill_input_buffer = refuse_to_read_on;
  source.skip_input_data = skip_bytes;
  source.resync_to_restart = jpeg_resync_to_restart;
  source.term_source = start_source;
  decoder.src = &source;
  const bool is_decoded = decode(&decoder, window, target);
  jpeg_destroy_decompress(&decoder);
  return is_decoded;
}

}  // namespace gpupipe
