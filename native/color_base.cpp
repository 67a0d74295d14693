// The functions of colours for every processor. On aarch64, where each has NEON, compilers use it.
#include "filter_rows.h"
#include "rows.h"

#if defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace gpupipe {
namespace {

#if defined(__aarch64__)
// Looks 16 levels up: an index outside of a quarter of the table leaves what is found as it is.
int64_t look_up_vectors(const uint8_t* from, uint8_t* to, int64_t count, const uint8_t* table) {
  uint8x16x4_t parts[4];
  for (int k = 0; k < 4; ++k) parts[k] = vld1q_u8_x4(table + 64 * k);
  int64_t n = 0;
  for (; n + 16 <= count; n += 16) {
    const uint8x16_t levels = vld1q_u8(from + n);
    uint8x16_t found = vqtbl4q_u8(parts[0], levels);
    for (int k = 1; k < 4; ++k)
      found = vqtbx4q_u8(found, parts[k], vsubq_u8(levels, vdupq_n_u8(uint8_t(64 * k))));
    vst1q_u8(to + n, found);
  }
  return n;
}
#else
int64_t look_up_vectors(const uint8_t*, uint8_t*, int64_t, const uint8_t*) { return 0; }
#endif

void look_up(const uint8_t* from, uint8_t* to, int64_t count, const uint8_t* table) {
  color::look_up_each(from, to, look_up_vectors(from, to, count, table), count, table);
}

void split(const uint8_t* pixels, uint8_t* const planes[], int count) {
  split_pixels(pixels, planes, 0, count, false);
}

void merge(const uint8_t* const planes[], uint8_t* pixels, int count) {
  merge_pixels(planes, pixels, 0, count);
}

#define COLOR_TARGET
#include "color_functions.h"

}  // namespace

const ColorVariant kColorBase = COLOR_VARIANT;

}  // namespace gpupipe
