// Compiles color_rows.h and filter_rows.h for the instruction set COLOR_TARGET. The file that
// includes it has look_up, split and merge, and read_gray and sum_luma if it HAS_LUMA.

COLOR_TARGET void compute_gray(const uint8_t* const planes[], uint8_t* gray, int count) {
  color::compute_gray(planes, gray, count);
}

#if !defined(HAS_LUMA)
COLOR_TARGET void read_gray(const uint8_t* pixels, uint8_t* gray, int count) {
  uint8_t bytes[kChannels][kPart];
  uint8_t* const planes[] = {bytes[0], bytes[1], bytes[2]};
  split(pixels, planes, count);
  color::compute_gray(planes, gray, count);
}

COLOR_TARGET uint32_t sum_luma(const uint8_t* pixels, int count) {
  uint8_t gray[kPart];
  read_gray(pixels, gray, count);
  return color::sum_levels(gray, count);
}
#endif

COLOR_TARGET void adjust_saturation(uint8_t* const planes[], int count, float factor, float rest) {
  color::adjust_saturation(planes, count, factor, rest);
}

COLOR_TARGET void adjust_hue(uint8_t* const planes[], int count, float turn) {
  color::adjust_hue(planes, count, turn);
}

COLOR_TARGET void find_extremes(const uint8_t* levels, int count, uint8_t* low, uint8_t* high) {
  color::find_extremes(levels, count, low, high);
}

COLOR_TARGET uint32_t sum_levels(const uint8_t* levels, int count) {
  return color::sum_levels(levels, count);
}

COLOR_TARGET void reverse_levels(const uint8_t* from, uint8_t* to, int count) {
  color::reverse(from, to, count);
}

template <typename Value>
COLOR_TARGET void sharpen(const Value* const rows[3], Value* values, int count, int step,
                          float change) {
  color::sharpen(rows, values, count, step, change);
}

template <typename Value>
COLOR_TARGET void blur_column(const Value* const rows[], const float* weights, int half,
                              float* sums, int count) {
  color::blur_column(rows, weights, half, sums, count);
}

template <typename Value>
COLOR_TARGET void blur_row(const float* from, const float* weights, int half, int step,
                           Value* values, int count) {
  color::blur_row(from, weights, half, step, values, count);
}

#define FILTERS(Value) {sharpen<Value>, blur_column<Value>, blur_row<Value>}
#define COLOR_VARIANT                                                                    \
  {look_up,    split,         merge,    compute_gray, read_gray,      adjust_saturation, \
   adjust_hue, find_extremes, sum_luma, sum_levels,   reverse_levels, FILTERS(uint8_t),  \
   FILTERS(float)}
