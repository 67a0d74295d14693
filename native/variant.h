// What the kernels of gpupipe._kernels share: images, conversions, and the table of variants.
//
// A variant is one set of row functions for one instruction set. All variants compute the same
// pixels to the bit: integers in the warp, and single IEEE operations in the conversion. So the
// build sets -ffp-contract=off.
#pragma once

#include "color_variant.h"
#include "float_variant.h"
#include "image.h"

#include <vector>

namespace gpupipe {

constexpr int kBlock = 8;     // output pixels of a warp that share one exact coordinate
constexpr int kPadding = 32;  // bytes that a variant may write after a row of levels; AVX-512's 15
constexpr int kSideBlock = 4, kSideSlack = 2;  // pixels: see Variant::transpose
constexpr int kPeriod = 24;   // values after which vectors of 8 and 1 to 4 channels begin again
constexpr int kFactors = kPeriod + kMaxChannels - 1;  // a period of them from each channel on

// A warp: output pixel (column, row) shows the source at matrix * (column, row, 1), of which the
// first two numbers are divided by the third in a warp of perspective.
struct Warp {
  Image source;
  double matrix[9];        // in indices of pixels: the centre of pixel n is n
  bool is_perspective;     // else the last three numbers are 0, 0 and 1
  bool has_fill;           // else the outside is 0, and torchvision weighs no border by a mask
  float fill[kMaxChannels];   // the value outside of the source
  uint8_t filled[kMaxChannels];
  // The way from the first pixel of a block of an affine warp, 16 fraction bits.
  int64_t dx[kBlock], dy[kBlock];
};

// One axis of a resize: output n is the sum of inputs from `first[n]` on, weighted.
//
// The weights are those of torch's kernel for uint8: int16 with `precision` fraction bits.
struct Taps {
  int count;      // of outputs
  int precision;
  int max_size;   // of `sizes`, even: each output has so many weights, those after its own are 0
  int phase;      // if inputs come in pairs: 1 if the first pair is of inputs -1 and 0, else 0
  std::vector<int32_t> first, sizes;
  std::vector<int16_t> weights;  // (count, max_size)
};

// The columns of a resize, and what a variant makes of them once.
struct Columns {
  Taps taps;
  std::vector<uint8_t> table;     // of the variant, at any alignment
  std::vector<int32_t> offsets;   // of the variant
  int width;                      // of the source
  int channels;
  bool is_wide;                   // of the variant
  int bytes_begin, bytes_end;     // of the variant
};

constexpr int kMaxRead = 128;  // bytes that a variant may read after a row: 2 vectors of AVX-512
constexpr int kGroup = 64;     // values that a variant may read or write after a row of pairs, and
                               // write after its levels: AVX-512 sums so many at a time

// Converts levels: table[c][v] == (scale * v - mean) / std, where c is a channel and v a level.
// Floats become (v - mean) / std, unless they stay as they are.
struct Conversion {
  const uint8_t* table[kMaxChannels];
  int item_size;     // bytes of a value: 1, 2, 4 or 8
  int channels;      // interleaved; 1 for a row of one channel
  bool is_identity;  // values are copied
  bool is_linear;    // the numbers below make the table to the bit; a value is float32 or float16
  bool is_scaling;   // mean is 0 and std is 1
  float scale[kFactors], mean[kFactors], std[kFactors];
};

struct Variant {
  const char* name;
  bool (*is_supported)();

  // Warps one row of the output to planes of levels. Writes up to kPadding bytes more.
  void (*warp_row)(const Warp& warp, int row, int width, uint8_t* const planes[]);

  // Takes pixels of RGB apart; the last pixel comes first if `is_reversed`.
  void (*split)(const uint8_t* pixels, uint8_t* const planes[kChannels], int width,
                bool is_reversed);

  // Interleaves planes to pixels of RGB.
  void (*merge)(const uint8_t* const planes[kChannels], uint8_t* pixels, int width);

  // Copies pixels of RGB, the last one first.
  void (*reverse)(const uint8_t* pixels, uint8_t* to, int width);

  // Swaps rows and columns of pixels of RGB, whose numbers are multiples of kSideBlock. Reads up to
  // kSideSlack pixels more of each row.
  void (*transpose)(const uint8_t* pixels, int64_t stride, uint8_t* to, int64_t to_stride, int rows,
                    int columns);

  // Converts `count` levels.
  void (*convert)(const uint8_t* levels, uint8_t* values, int64_t count,
                  const Conversion& conversion);

  // Prepares `columns` for resize_columns.
  void (*prepare_columns)(Columns& columns);

  // Resizes two rows to pairs of levels, (channels * count, 2). Reads up to kMaxRead bytes after
  // the rows, and writes up to kGroup pairs more.
  void (*resize_columns)(const Columns& columns, const uint8_t* a, const uint8_t* b,
                         uint16_t* pairs);

  // Sums `count` rows of pairs to `size` levels; pair n has weights 2 n and 2 n + 1. Reads up to
  // kGroup pairs more, and writes up to kGroup levels more.
  void (*blend_rows)(const uint16_t* const rows[], const int16_t* weights, int count, int precision,
                     int size, uint8_t* levels);

  const ColorVariant* color;
  const FloatVariant* floats;
};

extern const Variant kScalar;
#if defined(__x86_64__)
extern const Variant kAvx2;
extern const Variant kAvx512;
#endif
#if defined(__aarch64__)
extern const Variant kNeon;
#endif

}  // namespace gpupipe
