// Windows of JPEGs, with libjpeg-turbo.
#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <cstdlib>

#include <jpeglib.h>

#include "kernels.h"

namespace {

void fail(j_common_ptr info) {
  (*info->err->output_message)(info);
  std::exit(1);
}

}  // namespace

struct Decoder::State {
  jpeg_decompress_struct info;
  jpeg_error_mgr errors;
  std::vector<uint8_t> row;
};

Decoder::Decoder() : state_(new State) {
  state_->info.err = jpeg_std_error(&state_->errors);
  state_->errors.error_exit = fail;
  jpeg_create_decompress(&state_->info);
}

Decoder::~Decoder() {
  jpeg_destroy_decompress(&state_->info);
  delete state_;
}

Size Decoder::read_size(const std::vector<uint8_t>& file) {
  jpeg_decompress_struct& info = state_->info;
  jpeg_mem_src(&info, file.data(), file.size());
  jpeg_read_header(&info, TRUE);
  info.out_color_space = JCS_RGB;
  return {int(info.image_height), int(info.image_width)};
}

void Decoder::decode(Window window, Pixels* pixels) {
  jpeg_decompress_struct& info = state_->info;
  jpeg_start_decompress(&info);
  // Two columns more on each side: upsampling at the edge of what is decoded differs.
  JDIMENSION left = JDIMENSION(window.left > 2 ? window.left - 2 : 0);
  JDIMENSION width = JDIMENSION(window.left + window.width + 2) - left;
  if (left + width > info.output_width) width = info.output_width - left;
  if (width < info.output_width) jpeg_crop_scanline(&info, &left, &width);
  if (window.top > 0) jpeg_skip_scanlines(&info, JDIMENSION(window.top));
  const size_t stride = size_t(window.width) * 3;
  pixels->height = window.height, pixels->width = window.width;
  pixels->bytes.resize(stride * window.height + kRoom);
  state_->row.resize(size_t(info.output_width) * 3);
  const uint8_t* const from = state_->row.data() + (window.left - int(left)) * 3;
  const bool is_whole = size_t(info.output_width) * 3 == stride;
  for (int row = 0; row < window.height; ++row) {
    uint8_t* const to = pixels->bytes.data() + row * stride;
    JSAMPROW place = is_whole ? to : state_->row.data();
    jpeg_read_scanlines(&info, &place, 1);
    if (!is_whole) std::copy(from, from + stride, to);
  }
  jpeg_abort_decompress(&info);
}
