// The variant for every processor.
#include "rows.h"

namespace gpupipe {
namespace {

bool is_supported() { return true; }

void warp_row(const Warp& warp, int row, int width, uint8_t* const planes[]) {
  warp_pixels(warp, row, 0, width, planes);
}

void split(const uint8_t* pixels, uint8_t* const planes[kChannels], int width, bool is_reversed) {
  split_pixels(pixels, planes, 0, width, is_reversed);
}

void merge(const uint8_t* const planes[kChannels], uint8_t* pixels, int width) {
  merge_pixels(planes, pixels, 0, width);
}

void reverse(const uint8_t* pixels, uint8_t* to, int width) {
  reverse_pixels(pixels, to, 0, width);
}

void convert(const uint8_t* levels, uint8_t* values, int64_t count, const Conversion& k) {
  convert_by_table(levels, values, 0, count, k);
}

void prepare_columns(Columns&) {}

}  // namespace

const Variant kScalar = {"scalar",        is_supported,     warp_row,      split,
                         merge,           reverse,          transpose_rgb, convert,
                         prepare_columns, resize_pixels,    blend_pairs,   &kColorBase,
                         &kFloatBase};

}  // namespace gpupipe
