// The variant for every processor.
#include <algorithm>

#include "rows.h"

namespace gpupipe {
namespace {

bool is_supported() { return true; }

void warp_row(const Warp& warp, int row, int width, uint8_t* const planes[kChannels]) {
  for (int column = 0; column < width; column += kBlock) {
    int64_t x, y;
    locate_block(warp, row, column, &x, &y);
    warp_block(warp, x, y, column, std::min(kBlock, width - column), planes);
  }
}

void split(const uint8_t* pixels, uint8_t* const planes[kChannels], int width, bool is_reversed) {
  split_pixels(pixels, planes, 0, width, is_reversed);
}

void merge(const uint8_t* const planes[kChannels], uint8_t* pixels, int width) {
  merge_pixels(planes, pixels, 0, width);
}

void convert(const uint8_t* levels, uint8_t* values, int64_t count, const Conversion& k) {
  convert_by_table(levels, values, 0, count, k);
}

void prepare_columns(Columns&) {}

}  // namespace

const Variant kScalar = {"scalar", is_supported,    warp_row,      split,      merge,
                         convert,  prepare_columns, resize_pixels, blend_pairs,
                         &kColorBase};

}  // namespace gpupipe
