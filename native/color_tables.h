// Tables of the new level of each level.
#pragma once

#include "color_rows.h"
#include "image.h"

#include <algorithm>
#include <cstring>

namespace gpupipe {

// A table of each channel. All are equal if `is_shared`.
struct LevelTables {
  uint8_t levels[kChannels][kLevels];
  bool is_shared = true;

  // Sets all tables: compute(level) returns the new level.
  template <typename Compute>
  void set_all(const Compute& compute) {
    for (int level = 0; level < kLevels; ++level) levels[0][level] = uint8_t(compute(level));
    for (int c = 1; c < kChannels; ++c) std::memcpy(levels[c], levels[0], kLevels);
    is_shared = true;
  }

  void set_brightness(float factor) {
    set_all([=](int level) { return color::to_level(float(level) * factor); });
  }

  // Blends each level with the mean luma of the image.
  void set_contrast(double factor, float mean) {
    const float own = float(factor), rest = float(1.0 - factor);
    set_all([=](int level) { return color::to_level(float(level) * own + mean * rest); });
  }

  // Scales each level, and adds a number.
  void set_linear(double factor, double offset) {
    const float own = float(factor), added = float(offset);
    set_all([=](int level) { return color::to_level(float(level) * own + added); });
  }

  // Maps the smallest level of a channel to 0, and its largest to 255.
  void stretch(int channel, uint8_t low, uint8_t high) {
    const bool is_flat = low >= high;
    const float scale = is_flat ? 1.0f : float(high - low) * (1.0f / (kLevels - 1));
    for (int level = 0; level < kLevels; ++level)
      levels[channel][level] = color::to_level(float(level - (is_flat ? 0 : low)) / scale);
  }

  // Makes the histogram of a channel even, as Pillow and torchvision do.
  void equalize(int channel, const int64_t* counts, int64_t pixels) {
    int last = kLevels - 1;
    while (last > 0 && counts[last] == 0) --last;
    const int64_t step = (pixels - counts[last]) / (kLevels - 1);
    int64_t below = step / 2;
    for (int level = 0; level < kLevels; below += counts[level++]) {
      const int64_t even = step == 0 ? level : below / step;
      levels[channel][level] = uint8_t(std::min<int64_t>(even, kLevels - 1));
    }
  }

  // Looks the levels of these tables up in others.
  void follow(const LevelTables& next) {
    is_shared = is_shared && next.is_shared;
    for (int c = 0; c < kChannels; ++c)
      for (int level = 0; level < kLevels; ++level)
        levels[c][level] = next.levels[c][levels[c][level]];
  }
};

}  // namespace gpupipe
