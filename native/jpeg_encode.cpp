#include "jpeg.h"

#include <algorithm>
#include <csetjmp>
#include <cstdio>
#include <cstring>

#include <jpeglib.h>

namespace gpupipe {
namespace {

constexpr int kRows = 16;  // rows per call, those of a block of 4:2:0

// Any error ends the encoding.
struct ErrorManager {
  jpeg_error_mgr base;
  std::jmp_buf jump;
};

[[noreturn]] void leave(j_common_ptr encoder) {
  std::longjmp(reinterpret_cast<ErrorManager*>(encoder->err)->jump, 1);
}

void print_nothing(j_common_ptr) {}

// The destination is one buffer, which must be large enough.
void start_destination(j_compress_ptr) {}

boolean refuse_to_write_on(j_compress_ptr encoder) {
  leave(reinterpret_cast<j_common_ptr>(encoder));
}

void encode(jpeg_compress_struct* encoder, const JpegTarget& image, int quality) {
  encoder->image_width = JDIMENSION(image.width);
  encoder->image_height = JDIMENSION(image.height);
  encoder->input_components = image.channels;
  encoder->in_color_space = image.channels == 3 ? JCS_RGB : JCS_GRAYSCALE;
  jpeg_set_defaults(encoder);
  jpeg_set_quality(encoder, quality, TRUE);
  jpeg_start_compress(encoder, TRUE);
  while (encoder->next_scanline < encoder->image_height) {
    const JDIMENSION first = encoder->next_scanline;
    const JDIMENSION count = std::min<JDIMENSION>(kRows, encoder->image_height - first);
    JSAMPROW rows[kRows];
    for (JDIMENSION n = 0; n < count; ++n) rows[n] = image.pixels + (first + n) * image.stride;
    jpeg_write_scanlines(encoder, rows, count);
  }
  jpeg_finish_compress(encoder);
}

}  // namespace

size_t find_max_jpeg_size(int height, int width, int channels) {
  const size_t block = channels == 3 ? 16 : 8;
  const auto round_up = [&](int side) { return (size_t(side) + block - 1) / block * block; };
  return round_up(height) * round_up(width) * (channels == 3 ? 3 : 2) + 2048;
}

size_t encode_jpeg(const JpegTarget& image, int quality, uint8_t* data, size_t max_size) {
  jpeg_compress_struct encoder;
  ErrorManager errors;
  jpeg_destination_mgr destination;
  std::memset(&encoder, 0, sizeof(encoder));
  encoder.err = jpeg_std_error(&errors.base);
  errors.base.error_exit = leave;
  errors.base.output_message = print_nothing;
  if (setjmp(errors.jump)) {
    jpeg_destroy_compress(&encoder);
    return 0;
  }
  jpeg_create_compress(&encoder);
  destination.next_output_byte = data;
  destination.free_in_buffer = max_size;
  destination.init_destination = start_destination;
  destination.empty_output_buffer = refuse_to_write_on;
  destination.term_destination = start_destination;
  encoder.dest = &destination;
  encode(&encoder, image, quality);
  const size_t size = max_size - destination.free_in_buffer;
  jpeg_destroy_compress(&encoder);
  return size;
}

}  // namespace gpupipe
