// Loops over pixels of any number of channels and of any size.
#pragma once

#include <cstring>

#include "variant.h"

namespace gpupipe {

template <typename T, int kCount>
void split_few(const uint8_t* bytes, uint8_t* const planes[], int width, bool is_reversed) {
  const T* const pixels = reinterpret_cast<const T*>(bytes);
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

template <typename T, int kCount>
void merge_few(const uint8_t* const planes[], uint8_t* bytes, int width) {
  T* const pixels = reinterpret_cast<T*>(bytes);
  const T* from[kCount];
  for (int c = 0; c < kCount; ++c) from[c] = reinterpret_cast<const T*>(planes[c]);
  for (int n = 0; n < width; ++n)
    for (int c = 0; c < kCount; ++c) pixels[kCount * n + c] = from[c][n];
}

template <int kSize>
void reverse_few(const uint8_t* pixels, uint8_t* to, int width) {
  for (int n = 0; n < width; ++n)
    std::memcpy(to + n * kSize, pixels + (width - 1 - n) * kSize, kSize);
}

// Takes pixels of values of 1 or 4 bytes apart; the last pixel comes first if `is_reversed`.
inline void split_row(const Variant& variant, const uint8_t* pixels, uint8_t* const planes[],
                      int channels, int item_size, int width, bool is_reversed) {
  if (item_size == 1) {
    if (channels == 1) split_few<uint8_t, 1>(pixels, planes, width, is_reversed);
    if (channels == 2) split_few<uint8_t, 2>(pixels, planes, width, is_reversed);
    if (channels == 3) variant.split(pixels, planes, width, is_reversed);
    if (channels == 4) split_few<uint8_t, 4>(pixels, planes, width, is_reversed);
    return;
  }
  float* to[kMaxChannels];
  for (int c = 0; c < channels; ++c) to[c] = reinterpret_cast<float*>(planes[c]);
  if (channels > 1)
    variant.floats->split(reinterpret_cast<const float*>(pixels), to, channels, width, is_reversed);
  else
    split_few<uint32_t, 1>(pixels, planes, width, is_reversed);
}

// Interleaves planes of values of 1 or 4 bytes.
inline void merge_row(const Variant& variant, const uint8_t* const planes[], uint8_t* pixels,
                      int channels, int item_size, int width) {
  if (item_size == 1) {
    if (channels == 1) merge_few<uint8_t, 1>(planes, pixels, width);
    if (channels == 2) merge_few<uint8_t, 2>(planes, pixels, width);
    if (channels == 3) variant.merge(planes, pixels, width);
    if (channels == 4) merge_few<uint8_t, 4>(planes, pixels, width);
    return;
  }
  const float* from[kMaxChannels];
  for (int c = 0; c < channels; ++c) from[c] = reinterpret_cast<const float*>(planes[c]);
  if (channels > 1)
    variant.floats->merge(from, reinterpret_cast<float*>(pixels), channels, width);
  else
    std::memcpy(pixels, planes[0], size_t(width) * sizeof(float));
}

// Copies pixels of a size in bytes, the last one first.
inline void reverse_row(const Variant& variant, const uint8_t* pixels, uint8_t* to, int size,
                        int width) {
  if (size == 1) variant.color->reverse(pixels, to, width);
  if (size == 2) reverse_few<2>(pixels, to, width);
  if (size == 3) variant.reverse(pixels, to, width);
  if (size >= 4) variant.floats->reverse(pixels, to, size / 4, width);
}

}  // namespace gpupipe
