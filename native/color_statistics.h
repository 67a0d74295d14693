// Statistics of an image, gathered from the planes of parts of its rows.
#pragma once

#include "color_variant.h"
#include "image.h"

namespace gpupipe {

struct NoStatistics {
  void add(uint8_t* const*, int, int) {}
};

// The sum of the luma of all pixels.
struct LumaSum {
  const ColorVariant& variant;
  uint8_t* gray;
  uint64_t sum = 0;

  void add(uint8_t* const planes[], int channels, int count) {
    if (channels == kChannels) variant.compute_gray(planes, gray, count);
    sum += variant.sum_levels(channels == kChannels ? gray : planes[0], count);
  }
};

// The sum of all levels of all channels.
struct LevelSum {
  const ColorVariant& variant;
  uint64_t sum = 0;

  void add(uint8_t* const planes[], int channels, int count) {
    for (int c = 0; c < channels; ++c) sum += variant.sum_levels(planes[c], count);
  }
};

// The smallest and largest level of each channel.
struct Extremes {
  const ColorVariant& variant;
  uint8_t low[kChannels] = {255, 255, 255}, high[kChannels] = {};

  void add(uint8_t* const planes[], int channels, int count) {
    for (int c = 0; c < channels; ++c)
      variant.find_extremes(planes[c], count, &low[c], &high[c]);
  }
};

// How often each level occurs in each channel. Levels that follow each other are often equal:
// counters of their own do not wait for each other.
struct Histograms {
  static constexpr int kWays = 4;
  uint32_t counts[kChannels][kWays][kLevels] = {};

  void add(uint8_t* const planes[], int channels, int count) {
    for (int c = 0; c < channels; ++c) {
      const uint8_t* const plane = planes[c];
      int n = 0;
      for (; n + kWays <= count; n += kWays)
        for (int k = 0; k < kWays; ++k) ++counts[c][k][plane[n + k]];
      for (; n < count; ++n) ++counts[c][0][plane[n]];
    }
  }

  void sum(int channel, int64_t* sums) const {
    for (int level = 0; level < kLevels; ++level) {
      sums[level] = 0;
      for (int k = 0; k < kWays; ++k) sums[level] += counts[channel][k][level];
    }
  }
};

}  // namespace gpupipe
