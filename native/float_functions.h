// Compiles float_rows.h and float_colors.h for the instruction set FLOAT_TARGET.

FLOAT_TARGET void warp_rows(const Warp& warp, int row, int rows, int width, float* pixels,
                            int64_t step) {
  floats::warp_rows(warp, row, rows, width, pixels, step);
}

FLOAT_TARGET void blend_rows(const float* const rows[], const float* weights, int count,
                             int64_t size, float* sums) {
  floats::blend_rows(rows, weights, count, size, sums);
}

FLOAT_TARGET void resize_columns(const FloatTaps& taps, const float* pixels, int channels,
                                 float* to) {
  floats::resize_columns(taps, pixels, channels, to);
}

FLOAT_TARGET void normalize(const float* from, float* to, int64_t count, const Conversion& k) {
  floats::normalize(from, to, count, k);
}

FLOAT_TARGET double change_colors(const FloatChange* changes, int size, const float* from,
                                  float* to, int channels, int count) {
  return floats::change_colors(changes, size, from, to, channels, count);
}

#define FLOAT_VARIANT \
  { warp_rows, blend_rows, resize_columns, change_colors, normalize }
