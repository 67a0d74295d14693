// The variant for AVX-512 with VBMI and VNNI (Ice Lake, Zen 4 and later): the resize.
#if defined(__x86_64__)

#include <algorithm>

#include "avx512.h"
#include "cpu_features.h"

namespace gpupipe {
namespace {

using avx512::kVector;
constexpr int kLanes = 16;   // values of a block

bool is_supported() {
  return kAvx2.is_supported() && has_bits(kAvx512Bits) && keeps_registers(kAvx512Registers);
}

// A block is 16 values of a row of the output. An entry has two taps of them: a shuffle from the 64
// or 128 bytes at an offset of the source to words, whose odd bytes are masked, and weights. Or it
// has four: a shuffle to bytes, and weights that are bytes.
struct Entry {
  uint8_t shuffle[kVector];
  union {
    int16_t weights[kVector / 2];
    int8_t bytes[kVector];
  };
};

// Entries of two taps, of all blocks; then one entry of four taps for each block.
Entry* find_entries(const Columns& columns) {
  const uintptr_t begin = reinterpret_cast<uintptr_t>(columns.table.data());
  return reinterpret_cast<Entry*>((begin + kVector - 1) / kVector * kVector);
}

int count_blocks(const Columns& columns) {
  return (columns.taps.count * columns.channels + kLanes - 1) / kLanes;
}

constexpr int kByteBits = 7;  // fraction bits of a weight that is a byte

// Fills an entry of kTaps taps of a block. Returns how many bytes from the offset on it reads.
template <int kTaps>
int fill_entry(const Columns& columns, int block, int first_tap, int32_t* offset, Entry* entry) {
  const Taps& taps = columns.taps;
  const int channels = columns.channels;
  int32_t from[kLanes];
  int32_t first = INT32_MAX, last = 0;
  for (int n = 0; n < kLanes; ++n) {
    const int value = block * kLanes + n, output = value / channels;
    from[n] = -1;
    if (output >= taps.count || first_tap >= taps.sizes[output]) continue;
    from[n] = (taps.first[output] + first_tap) * channels + value % channels;
    first = std::min(first, from[n]), last = std::max(last, from[n]);
  }
  *offset = first == INT32_MAX ? 0 : first;
  *entry = {};
  for (int n = 0; n < kLanes; ++n) {
    if (from[n] < 0) continue;
    const size_t output = (block * kLanes + n) / channels;
    const int16_t* const weights = taps.weights.data() + output * taps.max_size + first_tap;
    for (int k = 0; k < std::min(kTaps, taps.max_size - first_tap); ++k) {
      entry->shuffle[4 * n + 4 / kTaps * k] = uint8_t(from[n] - *offset + k * channels);
      if (kTaps == 2) entry->weights[2 * n + k] = weights[k];
      else entry->bytes[4 * n + k] = int8_t(weights[k] >> (taps.precision - kByteBits));
    }
  }
  return last - *offset + (kTaps - 1) * channels + 1;
}

// Whether all outputs of a block sum up to four taps whose weights are bytes, and not below 0. Then
// the sums of bytes are those of the weights, of which they lack only bits that are 0. The weights
// of an output are 1 in all, so a sum of bytes fits 16 bits.
bool has_byte_weights(const Columns& columns, int block) {
  const Taps& taps = columns.taps;
  const int end = std::min(taps.count, (block * kLanes + kLanes - 1) / columns.channels + 1);
  if (taps.max_size > 4) return false;
  const int one = 1 << kByteBits, shift = taps.precision - kByteBits;  // precision is 13 at least
  for (int n = block * kLanes / columns.channels; n < end; ++n)
    for (int k = 0; k < taps.max_size; ++k) {
      const int weight = taps.weights[size_t(n) * taps.max_size + k];
      if (weight < 0 || weight >> shift >= one || weight % (1 << shift)) return false;
    }
  return true;
}

// Fills the entries of four taps of the first blocks in a row that can have them.
void fill_bytes(Columns& columns, int32_t* offsets, Entry* entries) {
  const int blocks = count_blocks(columns);
  int n = 0;
  while (n < blocks && !has_byte_weights(columns, n)) ++n;
  columns.bytes_begin = n;
  for (; n < blocks && has_byte_weights(columns, n); ++n)
    if (fill_entry<4>(columns, n, 0, offsets + n, entries + n) > kVector) break;
  columns.bytes_end = n;
}

// Without offsets, the source is too much larger than the output for shuffles.
void prepare_columns(Columns& columns) {
  const Taps& taps = columns.taps;
  const int blocks = count_blocks(columns), pairs = taps.max_size / 2;
  const size_t count = size_t(blocks) * pairs;
  columns.offsets.clear();
  if (taps.max_size > kMaxRead / columns.channels) return;
  columns.table.resize((count + blocks) * sizeof(Entry) + kVector);
  columns.offsets.resize(count + blocks);
  Entry* const entries = find_entries(columns);
  int reach = 0;
  for (size_t n = 0; n < count; ++n)
    reach = std::max(reach, fill_entry<2>(columns, int(n) / pairs, 2 * (int(n) % pairs),
                                          &columns.offsets[n], entries + n));
  columns.is_wide = reach > kVector;
  fill_bytes(columns, columns.offsets.data() + count, entries + count);
  if (reach > 2 * kVector) columns.offsets.clear();
}

template <bool kIsWide>
AVX512_INLINE __m512i load_words(const uint8_t* pixels, __m512i shuffle) {
  const __mmask64 low = 0x5555555555555555;  // the lower byte of each word
  const __m512i first = _mm512_loadu_si512(pixels);
  if (!kIsWide) return _mm512_maskz_permutexvar_epi8(low, shuffle, first);
  return _mm512_maskz_permutex2var_epi8(low, first, shuffle, _mm512_loadu_si512(pixels + kVector));
}

template <int kPairs, bool kIsWide>
AVX512_INLINE void resize_blocks(const Columns& columns, int begin, int end, const uint8_t* a,
                                 const uint8_t* b, uint16_t* to) {
  const Taps& taps = columns.taps;
  const __m512i round = _mm512_set1_epi32(1 << (taps.precision - 1));
  const __m128i shift = _mm_cvtsi32_si128(taps.precision);
  const __m512i interleave = _mm512_broadcast_i32x4(
      _mm_setr_epi8(0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15));
  const int pairs = kPairs ? kPairs : taps.max_size / 2;
  const Entry* entry = find_entries(columns) + size_t(begin) * pairs;
  const int32_t* offset = columns.offsets.data() + size_t(begin) * pairs;
  for (int n = begin * kLanes; n < end * kLanes; n += kLanes) {
    __m512i sum_a = round, sum_b = round;
    for (int k = 0; k < pairs; ++k, ++entry, ++offset) {
      const __m512i shuffle = _mm512_load_si512(entry->shuffle);
      const __m512i weights = _mm512_load_si512(entry->weights);
      sum_a = _mm512_dpwssd_epi32(sum_a, load_words<kIsWide>(a + *offset, shuffle), weights);
      sum_b = _mm512_dpwssd_epi32(sum_b, load_words<kIsWide>(b + *offset, shuffle), weights);
    }
    const __m512i words = _mm512_min_epu16(
        _mm512_packus_epi32(_mm512_sra_epi32(sum_a, shift), _mm512_sra_epi32(sum_b, shift)),
        _mm512_set1_epi16(255));
    _mm512_storeu_si512(to + 2 * n, _mm512_shuffle_epi8(words, interleave));
  }
}

template <bool kIsWide>
AVX512 void resize_pairs(const Columns& columns, int begin, int end, const uint8_t* a,
                         const uint8_t* b, uint16_t* to) {
  const int pairs = columns.taps.max_size / 2;
  if (pairs == 1) resize_blocks<1, kIsWide>(columns, begin, end, a, b, to);
  else if (pairs == 2) resize_blocks<2, kIsWide>(columns, begin, end, a, b, to);
  else if (pairs == 3) resize_blocks<3, kIsWide>(columns, begin, end, a, b, to);
  else resize_blocks<0, kIsWide>(columns, begin, end, a, b, to);
}

// Resizes the blocks whose weights are bytes.
AVX512 void resize_bytes(const Columns& columns, const uint8_t* a, const uint8_t* b, uint16_t* to) {
  const __m512i round = _mm512_set1_epi32(1 << (kByteBits - 1));
  const int begin = columns.bytes_begin, count = columns.bytes_end - begin;
  const size_t first = size_t(count_blocks(columns)) * (columns.taps.max_size / 2) + begin;
  const Entry* const entries = find_entries(columns) + first;
  const int32_t* const offsets = columns.offsets.data() + first;
  to += 2 * kLanes * begin;
  for (int n = 0; n < count; ++n, to += 2 * kLanes) {
    const __m512i shuffle = _mm512_load_si512(entries[n].shuffle);
    const __m512i weights = _mm512_load_si512(entries[n].bytes);
    const __m512i from_a = _mm512_permutexvar_epi8(shuffle, _mm512_loadu_si512(a + offsets[n]));
    const __m512i from_b = _mm512_permutexvar_epi8(shuffle, _mm512_loadu_si512(b + offsets[n]));
    const __m512i sum_a = _mm512_dpbusd_epi32(round, from_a, weights);
    const __m512i sum_b = _mm512_dpbusd_epi32(round, from_b, weights);
    const __m512i words = _mm512_or_si512(sum_a, _mm512_slli_epi32(sum_b, 16));
    _mm512_storeu_si512(to, _mm512_srli_epi16(words, kByteBits));
  }
}

AVX512 void resize_columns(const Columns& columns, const uint8_t* a, const uint8_t* b,
                           uint16_t* to) {
  if (columns.offsets.empty()) {
    avx2::resize_columns(columns, a, b, to);
    return;
  }
  const auto resize = columns.is_wide ? resize_pairs<true> : resize_pairs<false>;
  resize(columns, 0, columns.bytes_begin, a, b, to);
  resize_bytes(columns, a, b, to);
  resize(columns, columns.bytes_end, count_blocks(columns), a, b, to);
}

AVX512 void blend_rows(const uint16_t* const rows[], const int16_t* weights, int count,
                       int precision, int size, uint8_t* levels) {
  const __m512i round = _mm512_set1_epi32(1 << (precision - 1));
  const __m128i shift = _mm_cvtsi32_si128(precision);
  const __m512i order =
      _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  for (int n = 0; n < size; n += 4 * kLanes) {
    __m512i sums[4] = {round, round, round, round};
    for (int k = 0; k < count; ++k) {
      int32_t pair;
      std::memcpy(&pair, weights + 2 * k, sizeof(pair));
      const __m512i weight = _mm512_set1_epi32(pair);
      for (int i = 0; i < 4; ++i)
        sums[i] = _mm512_dpwssd_epi32(
            sums[i], _mm512_loadu_si512(rows[k] + 2 * (n + i * kLanes)), weight);
    }
    for (int i = 0; i < 4; ++i) sums[i] = _mm512_sra_epi32(sums[i], shift);
    const __m512i bytes = _mm512_packus_epi16(_mm512_packs_epi32(sums[0], sums[1]),
                                              _mm512_packs_epi32(sums[2], sums[3]));
    _mm512_storeu_si512(levels + n, _mm512_permutexvar_epi32(order, bytes));
  }
}

}  // namespace

const Variant kAvx512 = {"avx512",        is_supported,   avx512::warp_row, avx512::split,
                         avx512::merge,   avx2::reverse,  avx2::transpose,  avx512::convert,
                         prepare_columns, resize_columns, blend_rows,       &kColorAvx512,
                         &kFloatAvx512};

}  // namespace gpupipe

#endif
