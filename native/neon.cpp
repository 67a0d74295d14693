// The variant for NEON, which every aarch64 processor has. The warp and the resize are the scalar
// ones.
#if defined(__aarch64__)

#include <arm_neon.h>

#include "rows.h"

namespace gpupipe {
namespace {

bool is_supported() { return true; }

void warp_row(const Warp& warp, int row, int width, uint8_t* const planes[]) {
  kScalar.warp_row(warp, row, width, planes);
}

uint8x16_t reverse(uint8x16_t bytes) {
  const uint8x16_t halves = vrev64q_u8(bytes);
  return vextq_u8(halves, halves, 8);
}

void split(const uint8_t* pixels, uint8_t* const planes[kChannels], int width, bool is_reversed) {
  int n = 0;
  for (; n + 16 <= width; n += 16) {
    const uint8x16x3_t v = vld3q_u8(pixels + kChannels * (is_reversed ? width - 16 - n : n));
    for (int c = 0; c < kChannels; ++c)
      vst1q_u8(planes[c] + n, is_reversed ? reverse(v.val[c]) : v.val[c]);
  }
  split_pixels(pixels, planes, n, width, is_reversed);
}

void merge(const uint8_t* const planes[kChannels], uint8_t* pixels, int width) {
  int n = 0;
  for (; n + 16 <= width; n += 16) {
    uint8x16x3_t v;
    for (int c = 0; c < kChannels; ++c) v.val[c] = vld1q_u8(planes[c] + n);
    vst3q_u8(pixels + kChannels * n, v);
  }
  merge_pixels(planes, pixels, n, width);
}

void reverse(const uint8_t* pixels, uint8_t* to, int width) {
  int n = 0;
  for (; n + 16 <= width; n += 16) {
    uint8x16x3_t v = vld3q_u8(pixels + kChannels * (width - 16 - n));
    for (int c = 0; c < kChannels; ++c) v.val[c] = reverse(v.val[c]);
    vst3q_u8(to + kChannels * n, v);
  }
  reverse_pixels(pixels, to, n, width);
}

float32x4_t to_numbers(uint16x4_t levels, const Conversion& k, int part) {
  const float32x4_t scaled =
      vmulq_f32(vcvtq_f32_u32(vmovl_u16(levels)), vld1q_f32(k.scale + part));
  if (k.is_scaling) return scaled;
  return vdivq_f32(vsubq_f32(scaled, vld1q_f32(k.mean + part)), vld1q_f32(k.std + part));
}

void convert(const uint8_t* levels, uint8_t* values, int64_t count, const Conversion& k) {
  int64_t n = 0;
  for (; k.is_linear && n + kPeriod <= count; n += kPeriod) {
    for (int part = 0; part < kPeriod; part += 8) {
      const uint16x8_t wide = vmovl_u8(vld1_u8(levels + n + part));
      const float32x4_t low = to_numbers(vget_low_u16(wide), k, part);
      const float32x4_t high = to_numbers(vget_high_u16(wide), k, part + 4);
      if (k.item_size == 4) {
        float* to = reinterpret_cast<float*>(values) + n + part;
        vst1q_f32(to, low);
        vst1q_f32(to + 4, high);
      } else {
        const float16x8_t halves = vcombine_f16(vcvt_f16_f32(low), vcvt_f16_f32(high));
        vst1q_u16(reinterpret_cast<uint16_t*>(values) + n + part, vreinterpretq_u16_f16(halves));
      }
    }
  }
  convert_by_table(levels, values, n, count, k);
}

void prepare_columns(Columns&) {}

}  // namespace

const Variant kNeon = {"neon",          is_supported,  warp_row,      split,
                       merge,           reverse,       transpose_rgb, convert,
                       prepare_columns, resize_pixels, blend_pairs,   &kColorBase,
                       &kFloatBase};

}  // namespace gpupipe

#endif
