// Takes pixels of float32 through changes of colours: reads a few of them, changes them, adds them
// to statistics, and writes them.
#pragma once

#include "float_colors.h"

namespace gpupipe::floats {

// The statistics of pixels, in lanes.
class Tally {
 public:
  FLOAT_INLINE explicit Tally(FloatStatistics* statistics) : statistics_(statistics) {
    for (int c = 0; c < kChannels; ++c)
      for (int k = 0; k < kLanes; ++k) low_[c][k] = HUGE_VALF, high_[c][k] = -HUGE_VALF;
  }

  FLOAT_INLINE void add(const Planes& pixels, int count) {
    const float* const* const planes = pixels.planes;
    if (statistics_->kind == FloatStatistics::kExtremes) {
      for (int c = 0; c < pixels.channels; ++c) find_extremes(planes[c], count, c);
      return;
    }
    if (statistics_->kind == FloatStatistics::kLuma && pixels.channels == kChannels) {
      alignas(64) float luma[kFew];
      const float *const r = planes[0], *const g = planes[1], *const b = planes[2];
      for (int n = 0; n < kFew; ++n) luma[n] = compute_luma(r[n], g[n], b[n]);
      sum_values(luma, count);
    } else {
      for (int c = 0; c < pixels.channels; ++c) sum_values(planes[c], count);
    }
    if (++num_added_ % 64 == 0) take_sums();  // float32 would lose what is added to large sums
  }

  FLOAT_INLINE void finish() {
    take_sums();
    for (int c = 0; c < kChannels; ++c)
      for (int k = 0; k < kLanes; ++k) {
        float &low = statistics_->low[c], &high = statistics_->high[c];
        if (nans_[c][k]) low = high = NAN;
        low = low_[c][k] < low ? low_[c][k] : low;
        high = high_[c][k] > high ? high_[c][k] : high;
      }
  }

 private:
  FLOAT_INLINE void sum_values(const float* values, int count) {
    if (count == kFew) {
      for (int n = 0; n < kFew; n += kLanes)
        for (int k = 0; k < kLanes; ++k) sums_[k] += values[n + k];
      return;
    }
    for (int n = 0; n < count; ++n) sums_[n % kLanes] += values[n];
  }

  FLOAT_INLINE void take_sums() {
    for (float& sum : sums_) statistics_->sum += double(sum), sum = 0;
  }

  FLOAT_INLINE void find_extremes(const float* values, int count, int channel) {
    float *const low = low_[channel], *const high = high_[channel];
    int* const nans = nans_[channel];
    const auto add_one = [=](float value, int k) {
      low[k] = value < low[k] ? value : low[k];
      high[k] = value > high[k] ? value : high[k];
      nans[k] |= value == value ? 0 : 1;
    };
    if (count == kFew) {
      for (int n = 0; n < kFew; n += kLanes)
        for (int k = 0; k < kLanes; ++k) add_one(values[n + k], k);
      return;
    }
    for (int n = 0; n < count; ++n) add_one(values[n], n % kLanes);
  }

  FloatStatistics* statistics_;
  int num_added_ = 0;
  alignas(64) float sums_[kLanes] = {};
  alignas(64) float low_[kChannels][kLanes], high_[kChannels][kLanes];
  alignas(64) int nans_[kChannels][kLanes] = {};
};

constexpr int kPixelsAhead = 512;  // that are fetched before they are read

// Fetches kFew pixels of planes. Processors fetch ahead what is read from one or two of them, and
// hardly what is read from three in turns.
FLOAT_INLINE void fetch_few(const FloatPart& part, int64_t begin) {
  constexpr int kLine = 16;  // floats of a line of the cache
  if (begin + kFew > part.count) return;
  for (int c = 0; c < part.channels; ++c)
    for (int n = 0; n < kFew; n += kLine)
      __builtin_prefetch(part.from + c * part.from_plane + begin + n, 0, 2);
}

// Reads `count` pixels of a part, and fills up with zeros.
FLOAT_INLINE void read_few(const FloatPart& part, int64_t begin, int count, Planes& pixels) {
  pixels.channels = part.channels;
  const size_t bytes = size_t(count) * sizeof(float);
  if (part.from_plane || part.channels == 1) {
    for (int c = 0; c < part.channels; ++c) {
      const float* const from = part.from + c * part.from_plane + begin;
      if (count < kFew) std::memset(pixels.values[c], 0, sizeof pixels.values[c]);
      std::memcpy(pixels.values[c], from, count < kFew ? bytes : sizeof pixels.values[c]);
    }
    return;
  }
  const float* from = part.from + begin * kChannels;
  float padded[kFew * kChannels];
  if (count < kFew) {
    std::memset(padded, 0, sizeof padded);
    std::memcpy(padded, from, kChannels * bytes);
    from = padded;
  }
  split_few<kChannels>(from, pixels.planes, kFew, false);
}

// Writes values of a multiple of kFew, of which `count` are needed.
template <typename Few>
FLOAT_INLINE void write_values(const float* values, int size, int count, bool is_streamed,
                               float* to) {
  if (count < size || !is_streamed || reinterpret_cast<uintptr_t>(to) % 64) {
    std::memcpy(to, values, size_t(count) * sizeof(float));
    return;
  }
  for (int n = 0; n < size; n += kFew) Few::stream(values + n, to + n);
}

template <typename Few>
FLOAT_INLINE void write_few(const Planes& pixels, const FloatPart& part, int64_t begin, int count) {
  if (part.to_plane || pixels.channels == 1) {
    for (int c = 0; c < pixels.channels; ++c)
      write_values<Few>(pixels.planes[c], kFew, count, part.is_streamed,
                        part.to + c * part.to_plane + begin);
    return;
  }
  alignas(64) float merged[kFew * kChannels];
  merge_few<kChannels>(pixels.planes, merged, kFew);
  write_values<Few>(merged, kFew * kChannels, count * kChannels, part.is_streamed,
                    part.to + begin * kChannels);
}

// Returns how many pixels there are before one whose values begin a cache line.
FLOAT_INLINE int find_head(const FloatPart& part, bool is_interleaved) {
  const int values = int(-(reinterpret_cast<uintptr_t>(part.to) / sizeof(float)) % 16);
  return is_interleaved ? values * 11 % 16 : values;  // 3 * 11 is 1 modulo 16
}

template <typename Few>
FLOAT_INLINE void change_few(const FloatChange* changes, int size, const FloatPart& part,
                             Tally* tally) {
  const int head = part.is_streamed ? find_head(part, part.channels > 1 && !part.to_plane) : 0;
  Planes pixels;
  for (int64_t n = 0; n < part.count;) {
    const int few = n == 0 && head ? head : kFew;
    const int count = part.count - n < few ? int(part.count - n) : few;
    for (int c = 0; c < kChannels; ++c) pixels.planes[c] = pixels.values[c];
    if (part.from_plane) fetch_few(part, n + kPixelsAhead);
    read_few(part, n, count, pixels);
    for (int k = 0; k < size; ++k) change_planes(changes[k], pixels);
    if (tally) tally->add(pixels, count);
    if (part.to) write_few<Few>(pixels, part, n, count);
    n += count;
  }
}

template <typename Few>
FLOAT_INLINE void change_colors(const FloatChange* changes, int size, const FloatPart& part) {
  if (!part.statistics) return change_few<Few>(changes, size, part, nullptr);
  Tally tally(part.statistics);
  change_few<Few>(changes, size, part, &tally);
  tally.finish();
}

}  // namespace gpupipe::floats
