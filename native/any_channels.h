// Loops over pixels of any number of channels.
#pragma once

#include <algorithm>
#include <cstring>

#include "image.h"

namespace gpupipe {

template <typename T, int kCount>
void split_few(const T* pixels, uint8_t* const planes[], int width, bool is_reversed) {
  T* to[kCount];
  for (int c = 0; c < kCount; ++c) to[c] = reinterpret_cast<T*>(planes[c]);
  if (is_reversed) {
    for (int n = 0; n < width; ++n)
      for (int c = 0; c < kCount; ++c) to[c][n] = pixels[kCount * (width - 1 - n) + c];
    return;
  }
  for (int n = 0; n < width; ++n)
    for (int c = 0; c < kCount; ++c) to[c][n] = pixels[kCount * n + c];
}

// Takes pixels of 1 to 4 values of T apart; the last pixel comes first if `is_reversed`.
template <typename T>
void split_any(const uint8_t* bytes, uint8_t* const planes[], int channels, int width,
               bool is_reversed) {
  const T* const pixels = reinterpret_cast<const T*>(bytes);
  if (channels == 1) split_few<T, 1>(pixels, planes, width, is_reversed);
  if (channels == 2) split_few<T, 2>(pixels, planes, width, is_reversed);
  if (channels == 3) split_few<T, 3>(pixels, planes, width, is_reversed);
  if (channels == 4) split_few<T, 4>(pixels, planes, width, is_reversed);
}

template <typename T, int kCount>
void merge_few(const uint8_t* const planes[], T* pixels, int width) {
  const T* from[kCount];
  for (int c = 0; c < kCount; ++c) from[c] = reinterpret_cast<const T*>(planes[c]);
  for (int n = 0; n < width; ++n)
    for (int c = 0; c < kCount; ++c) pixels[kCount * n + c] = from[c][n];
}

// Interleaves 1 to 4 planes of T.
template <typename T>
void merge_any(const uint8_t* const planes[], uint8_t* bytes, int channels, int width) {
  T* const pixels = reinterpret_cast<T*>(bytes);
  if (channels == 1) merge_few<T, 1>(planes, pixels, width);
  if (channels == 2) merge_few<T, 2>(planes, pixels, width);
  if (channels == 3) merge_few<T, 3>(planes, pixels, width);
  if (channels == 4) merge_few<T, 4>(planes, pixels, width);
}

template <int kSize>
void reverse_few(const uint8_t* pixels, uint8_t* to, int width) {
  for (int n = 0; n < width; ++n)
    std::memcpy(to + n * kSize, pixels + (width - 1 - n) * kSize, kSize);
}

// Pixels of one or four bytes, eight bytes at a time.
template <int kSize>
void reverse_eight(const uint8_t* pixels, uint8_t* to, int width) {
  constexpr int kCount = 8 / kSize;
  int n = 0;
  for (; n + kCount <= width; n += kCount) {
    uint64_t bytes;
    std::memcpy(&bytes, pixels + (width - kCount - n) * kSize, 8);
    bytes = kSize == 1 ? __builtin_bswap64(bytes) : bytes << 32 | bytes >> 32;
    std::memcpy(to + n * kSize, &bytes, 8);
  }
  for (; n < width; ++n) std::memcpy(to + n * kSize, pixels + (width - 1 - n) * kSize, kSize);
}

// Copies pixels of a size in bytes, the last one first.
inline void reverse_any(const uint8_t* pixels, uint8_t* to, int size, int width) {
  if (size == 1) reverse_eight<1>(pixels, to, width);
  if (size == 2) reverse_few<2>(pixels, to, width);
  if (size == 3) reverse_few<3>(pixels, to, width);
  if (size == 4) reverse_eight<4>(pixels, to, width);
  if (size == 8) reverse_few<8>(pixels, to, width);
  if (size == 12) reverse_few<12>(pixels, to, width);
  if (size == 16) reverse_few<16>(pixels, to, width);
}

// Copies the channels from `first` on to RGB; missing ones repeat the last.
inline void pick_channels(const uint8_t* pixels, int channels, int first, uint8_t* rgb,
                          int width) {
  int at[kChannels];
  for (int c = 0; c < kChannels; ++c) at[c] = std::min(first + c, channels - 1);
  for (int n = 0; n < width; ++n)
    for (int c = 0; c < kChannels; ++c) rgb[kChannels * n + c] = pixels[channels * n + at[c]];
}

// Copies RGB to the channels from `first` on, as many as there are.
inline void put_channels(const uint8_t* rgb, uint8_t* pixels, int channels, int first, int width) {
  const int count = std::min(kChannels, channels - first);
  for (int n = 0; n < width; ++n)
    for (int c = 0; c < count; ++c) pixels[channels * n + first + c] = rgb[kChannels * n + c];
}

}  // namespace gpupipe
