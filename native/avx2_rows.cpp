// The variant for AVX2 and F16C: planes, and numbers.
#if defined(__x86_64__)

#include "avx2.h"

namespace gpupipe::avx2 {
namespace {

// The shuffles between 16 interleaved pixels, which are three vectors, and three planes.
struct Shuffles {
  alignas(16) uint8_t split[2][kChannels][3][16];  // by direction, plane and vector
  alignas(16) uint8_t merge[3][kChannels][16];     // by vector and plane

  Shuffles() {
    std::memset(this, 0x80, sizeof(*this));  // a shuffle puts a 0 there
    for (int n = 0; n < 16; ++n) {
      for (int c = 0; c < kChannels; ++c) {
        const int byte = kChannels * n + c;
        split[0][c][byte / 16][n] = uint8_t(byte % 16);
        split[1][c][byte / 16][15 - n] = uint8_t(byte % 16);
        merge[byte / 16][c][byte % 16] = uint8_t(n);
      }
    }
  }
};

const Shuffles kShuffles;

AVX2_INLINE __m128i load(const uint8_t* bytes) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes));
}

AVX2_INLINE __m128i shuffle_three(__m128i a, __m128i b, __m128i c, const uint8_t how[3][16]) {
  return _mm_or_si128(
      _mm_or_si128(_mm_shuffle_epi8(a, load(how[0])), _mm_shuffle_epi8(b, load(how[1]))),
      _mm_shuffle_epi8(c, load(how[2])));
}

constexpr int kLine = 16;  // floats in a cache line

// A mask of the first `count` of 8 values.
AVX2_INLINE __m256i mask_of(int64_t count) {
  const __m256i positions = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(int(count)), positions);
}

AVX2_INLINE __m256 to_numbers(const uint8_t* levels, const Conversion& k, int part) {
  const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(levels));
  const __m256 scaled = _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes)),
                                      _mm256_loadu_ps(k.scale + part));
  if (k.is_scaling) return scaled;
  return _mm256_div_ps(_mm256_sub_ps(scaled, _mm256_loadu_ps(k.mean + part)),
                       _mm256_loadu_ps(k.std + part));
}

// Stores whole cache lines past the cache: a batch is larger than the cache, and a line that is
// not there would be read before it is written. A line that two rows share goes through the cache.
AVX2 int64_t convert_to_floats(const uint8_t* levels, float* values, int64_t count,
                               const Conversion& k) {
  if (count < 2 * kLine) return 0;
  const int64_t head = -(reinterpret_cast<uintptr_t>(values) / sizeof(float)) % kLine;
  const int channels = k.channels;
  const int64_t end = count - (count - head) % kLine;
  for (int64_t n = 0; n < head; n += 8)
    _mm256_maskstore_ps(values + n, mask_of(head - n),
                        to_numbers(levels + n, k, int(n % channels)));
  const int first = int(head % channels);  // the channel of the next value
  int64_t n = head;
  for (; n + kPeriod <= end; n += kPeriod)
    for (int part = 0; part < kPeriod; part += 8)
      _mm256_stream_ps(values + n + part, to_numbers(levels + n + part, k, first + part));
  for (int part = 0; n < end; n += 8, part += 8)
    _mm256_stream_ps(values + n, to_numbers(levels + n, k, first + part));
  for (; n + 8 <= count; n += 8)
    _mm256_storeu_ps(values + n, to_numbers(levels + n, k, int(n % channels)));
  return n;
}

AVX2 int64_t convert_to_halves(const uint8_t* levels, uint16_t* values, int64_t count,
                               const Conversion& k) {
  int64_t n = 0;
  for (; n + kPeriod <= count; n += kPeriod)
    for (int part = 0; part < kPeriod; part += 8)
      _mm_storeu_si128(
          reinterpret_cast<__m128i*>(values + n + part),
          _mm256_cvtps_ph(to_numbers(levels + n + part, k, part), _MM_FROUND_TO_NEAREST_INT));
  return n;
}

}  // namespace

AVX2 void split(const uint8_t* pixels, uint8_t* const planes[kChannels], int width,
                bool is_reversed) {
  int n = 0;
  for (; n + 16 <= width; n += 16) {
    const uint8_t* from = pixels + kChannels * (is_reversed ? width - 16 - n : n);
    const __m128i a = load(from), b = load(from + 16), c = load(from + 32);
    for (int k = 0; k < kChannels; ++k)
      _mm_storeu_si128(reinterpret_cast<__m128i*>(planes[k] + n),
                       shuffle_three(a, b, c, kShuffles.split[is_reversed][k]));
  }
  split_pixels(pixels, planes, n, width, is_reversed);
}

AVX2 void merge(const uint8_t* const planes[kChannels], uint8_t* pixels, int width) {
  int n = 0;
  for (; n + 16 <= width; n += 16) {
    const __m128i a = load(planes[0] + n), b = load(planes[1] + n), c = load(planes[2] + n);
    for (int k = 0; k < 3; ++k)
      _mm_storeu_si128(reinterpret_cast<__m128i*>(pixels + kChannels * n + 16 * k),
                       shuffle_three(a, b, c, kShuffles.merge[k]));
  }
  merge_pixels(planes, pixels, n, width);
}

// Five pixels at a time: each vector writes a byte more, which the next one overwrites.
AVX2 void reverse(const uint8_t* pixels, uint8_t* to, int width) {
  constexpr int kCount = 5;
  // The first byte of a vector is that before its pixels.
  const __m128i turn = _mm_setr_epi8(13, 14, 15, 10, 11, 12, 7, 8, 9, 4, 5, 6, 1, 2, 3, 0);
  int n = 0;
  for (; n + kCount < width; n += kCount) {
    const __m128i five = load(pixels + kChannels * (width - kCount - n) - 1);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + kChannels * n), _mm_shuffle_epi8(five, turn));
  }
  reverse_pixels(pixels, to, n, width);
}

AVX2 void convert(const uint8_t* levels, uint8_t* values, int64_t count, const Conversion& k) {
  int64_t n = 0;
  if (k.is_linear && k.item_size == 4)
    n = convert_to_floats(levels, reinterpret_cast<float*>(values), count, k);
  else if (k.is_linear && k.item_size == 2)
    n = convert_to_halves(levels, reinterpret_cast<uint16_t*>(values), count, k);
  convert_by_table(levels, values, n, count, k);
}

}  // namespace gpupipe::avx2

#endif
