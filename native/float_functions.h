// Compiles float_rows.h and float_parts.h for the instruction set FLOAT_TARGET. The file that
// includes it has `stream`, and Few: Few::warp warps pixels that are inside, several at once, and
// returns how many; Few::stream writes kFew values past the cache, to where a line of it begins.

FLOAT_TARGET void warp_rows(const Warp& warp, int row, int rows, int width, float* pixels,
                            int64_t step) {
  floats::warp_rows<Few>(warp, row, rows, width, pixels, step);
}

FLOAT_TARGET void blend_rows(const float* const rows[], const float* weights, int count,
                             int64_t size, float* sums) {
  floats::blend_rows(rows, weights, count, size, sums);
}

FLOAT_TARGET void resize_columns(const FloatTaps& taps, const float* pixels, int channels,
                                 float* to) {
  floats::resize_columns(taps, pixels, channels, to);
}

FLOAT_TARGET void change_colors(const FloatChange* changes, int size, const FloatPart& part) {
  floats::change_colors<Few>(changes, size, part);
}

FLOAT_TARGET void split(const float* pixels, float* const planes[], int channels, int count,
                        bool is_reversed) {
  floats::split(pixels, planes, channels, count, is_reversed);
}

FLOAT_TARGET void merge(const float* const planes[], float* pixels, int channels, int count) {
  floats::merge(planes, pixels, channels, count);
}

FLOAT_TARGET void reverse(const uint8_t* pixels, uint8_t* to, int values, int count) {
  floats::reverse(pixels, to, values, count);
}

// In parts that stay in the first cache, of whole periods.
FLOAT_TARGET void normalize(const float* from, float* to, int64_t count, const Conversion& k) {
  constexpr int kValues = 40 * kPeriod;
  alignas(64) float values[kValues];
  for (int64_t n = 0; n < count; n += kValues) {
    const int64_t size = count - n < kValues ? count - n : kValues;
    floats::normalize(from + n, values, size, k);
    stream(values, to + n, size);
  }
}

#define FLOAT_VARIANT                                                                \
  {warp_rows, blend_rows, resize_columns, change_colors, split, merge, reverse, normalize, \
   stream}
