// The variant for AVX-512: planes, and numbers.
#if defined(__x86_64__)

#include <algorithm>

#include "avx512.h"

namespace gpupipe::avx512 {
namespace {

// The shuffles between 64 interleaved pixels, which are three vectors, and three planes.
struct Shuffles {
  // By direction and plane, the byte of all three vectors, modulo 128.
  alignas(kVector) uint8_t split[2][kChannels][kVector];
  alignas(kVector) uint8_t merge[3][kVector];  // the pixel, and 64 for the second plane
  uint64_t is_last_vector[2][kChannels] = {}, is_last_plane[3] = {};

  Shuffles() {
    for (int n = 0; n < kVector; ++n) {
      for (int c = 0; c < kChannels; ++c) {
        for (int is_reversed = 0; is_reversed < 2; ++is_reversed) {
          const int byte = kChannels * (is_reversed ? kVector - 1 - n : n) + c;
          split[is_reversed][c][n] = uint8_t(byte % (2 * kVector));
          is_last_vector[is_reversed][c] |= uint64_t{byte >= 2 * kVector} << n;
        }
        const int own = c * kVector + n, plane = own % kChannels;
        merge[c][n] = uint8_t(own / kChannels + (plane == 1 ? kVector : 0));
        is_last_plane[c] |= uint64_t{plane == 2} << n;
      }
    }
  }
};

const Shuffles kShuffles;

// Takes bytes from a and b, or from c where the mask says so.
AVX512_INLINE __m512i shuffle_three(const __m512i v[3], const uint8_t* how, uint64_t is_last) {
  const __m512i order = _mm512_load_si512(how);
  return _mm512_mask_permutexvar_epi8(_mm512_permutex2var_epi8(v[0], order, v[1]), is_last, order,
                                      v[2]);
}

constexpr int kLine = 16;  // floats in a cache line, and in a vector

// The factors of a vector whose first value is that of a channel.
struct Factors {
  __m512 scale, mean, std;

  AVX512_INLINE Factors(const Conversion& k, int64_t channel)
      : scale(_mm512_loadu_ps(k.scale + channel)),
        mean(_mm512_loadu_ps(k.mean + channel)),
        std(_mm512_loadu_ps(k.std + channel)) {}
};

template <bool kIsScaling>
AVX512_INLINE __m512 to_numbers(__m128i levels, const Factors& f) {
  const __m512 scaled = _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(levels)), f.scale);
  return kIsScaling ? scaled : _mm512_div_ps(_mm512_sub_ps(scaled, f.mean), f.std);
}

// Converts less than a vector of values.
template <bool kIsScaling>
AVX512_INLINE void convert_few(const uint8_t* levels, float* values, int64_t count,
                               const Factors& f) {
  const __mmask16 mask = __mmask16(mask_of(count));
  const __m128i few = _mm_maskz_loadu_epi8(mask, levels);
  _mm512_mask_storeu_ps(values, mask, to_numbers<kIsScaling>(few, f));
}

template <bool kIsScaling>
AVX512_INLINE void stream(const uint8_t* levels, float* values, const Factors& f) {
  const __m128i line = _mm_loadu_si128(reinterpret_cast<const __m128i*>(levels));
  _mm512_stream_ps(values, to_numbers<kIsScaling>(line, f));
}

// Stores whole cache lines past the cache: see avx2_rows.cpp.
template <bool kIsScaling>
AVX512 void convert_to_floats(const uint8_t* levels, float* values, int64_t count,
                              const Conversion& k) {
  const int64_t head =
      std::min<int64_t>(count, -(reinterpret_cast<uintptr_t>(values) / sizeof(float)) % kLine);
  const auto find_factors = [&](int64_t n) AVX512 {
    return Factors(k, k.channels == 1 ? 0 : uint32_t(n) % uint32_t(k.channels));
  };
  if (head) convert_few<kIsScaling>(levels, values, head, find_factors(0));
  const Factors a = find_factors(head), b = find_factors(head + kLine);
  const Factors c = find_factors(head + 2 * kLine);
  int64_t n = head;
  for (; n + 3 * kLine <= count; n += 3 * kLine) {
    stream<kIsScaling>(levels + n, values + n, a);
    stream<kIsScaling>(levels + n + kLine, values + n + kLine, b);
    stream<kIsScaling>(levels + n + 2 * kLine, values + n + 2 * kLine, c);
  }
  for (; n + kLine <= count; n += kLine)
    stream<kIsScaling>(levels + n, values + n, find_factors(n));
  if (n < count) convert_few<kIsScaling>(levels + n, values + n, count - n, find_factors(n));
}

}  // namespace

// The last vectors overlap those before them.
AVX512 void split(const uint8_t* pixels, uint8_t* const planes[kChannels], int width,
                  bool is_reversed) {
  if (width < kVector) return avx2::split(pixels, planes, width, is_reversed);
  for (int n = 0; n < width; n += kVector) {
    const int to = std::min(n, width - kVector);
    const uint8_t* const from = pixels + kChannels * (is_reversed ? width - kVector - to : to);
    __m512i v[3];
    for (int k = 0; k < 3; ++k) v[k] = _mm512_loadu_si512(from + k * kVector);
    for (int c = 0; c < kChannels; ++c)
      _mm512_storeu_si512(planes[c] + to,
                          shuffle_three(v, kShuffles.split[is_reversed][c],
                                        kShuffles.is_last_vector[is_reversed][c]));
  }
}

AVX512 void merge(const uint8_t* const planes[], uint8_t* pixels, int count) {
  for (int n = 0; n < count; n += kVector) {
    const int64_t bytes = int64_t{count - n} * kChannels;
    const __mmask64 mask = mask_of(count - n);
    __m512i v[3];
    for (int c = 0; c < kChannels; ++c) v[c] = _mm512_maskz_loadu_epi8(mask, planes[c] + n);
    for (int k = 0; k < 3; ++k)
      _mm512_mask_storeu_epi8(
          pixels + n * kChannels + k * kVector, mask_of(bytes - k * kVector),
          shuffle_three(v, kShuffles.merge[k], kShuffles.is_last_plane[k]));
  }
}

AVX512 void convert(const uint8_t* levels, uint8_t* values, int64_t count, const Conversion& k) {
  if (k.is_linear && k.item_size == sizeof(float))
    (k.is_scaling ? convert_to_floats<true> : convert_to_floats<false>)(
        levels, reinterpret_cast<float*>(values), count, k);
  else
    avx2::convert(levels, values, count, k);
}

}  // namespace gpupipe::avx512

#endif
