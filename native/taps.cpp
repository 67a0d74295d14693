// The weights of a resize: those of torch's kernels, which have them from Pillow.
#include "taps.h"

#include <algorithm>
#include <cmath>

namespace gpupipe {
namespace {

// Fraction bits of a weight, as in Pillow: of the 32 bits of a sum, a level takes 8 and its excess
// 2.
constexpr int kMaxPrecision = 22;

double filter_linear(double x) {
  x = std::abs(x);
  return x < 1 ? 1 - x : 0;
}

// Keys' cubic convolution. With antialiasing its parameter is Pillow's, without it OpenCV's.
double filter_cubic(double x, double a) {
  x = std::abs(x);
  if (x < 1) return ((a + 2) * x - (a + 3)) * x * x + 1;
  if (x < 2) return ((a * x - 5 * a) * x + 8 * a) * x - 4 * a;
  return 0;
}

double apply_filter(const Resampling& how, double x) {
  return how.is_cubic ? filter_cubic(x, how.antialias ? -0.5 : -0.75) : filter_linear(x);
}

// Real numbers, before they are rounded to int16.
struct RealTaps {
  int max_size;
  std::vector<double> weights;
  std::vector<int32_t> first, sizes;
  double highest = 0;
};

// Rounds as torch does, which computes the taps of floats in float32.
double round_to(bool is_float, double value) { return is_float ? double(float(value)) : value; }

// Weighs all inputs under the filter, which is as wide as an output at least.
void weigh_support(const Resampling& how, bool is_float, double scale, double support, int n,
                   RealTaps& taps) {
  const double center = round_to(is_float, scale * (n + 0.5));
  const double inverse = scale >= 1 ? 1 / scale : 1;
  const int64_t first = std::max(int64_t(center - support + 0.5), int64_t{0});
  const int64_t end = std::min(int64_t(center + support + 0.5), int64_t{how.input});
  const int size = int(std::clamp(end - first, int64_t{0}, int64_t{taps.max_size}));
  double* weights = taps.weights.data() + size_t(n) * taps.max_size;
  double total = 0;
  for (int k = 0; k < size; ++k) {
    weights[k] = apply_filter(how, (k + first - center + 0.5) * inverse);
    total += weights[k];
  }
  for (int k = 0; k < size && total != 0; ++k) {
    weights[k] /= total;
    taps.highest = std::max(taps.highest, weights[k]);
  }
  taps.first[n] = int32_t(first), taps.sizes[n] = size;
}

// Weighs the nearest inputs. Those outside have the weights of the input at the border.
void weigh_nearest(const Resampling& how, bool is_float, double scale, int n, RealTaps& taps) {
  const double at = round_to(is_float, round_to(is_float, scale * (n + 0.5)) - 0.5);
  const double from = how.is_cubic ? at : std::max(at, 0.0);
  // torch takes the floor in float32.
  const int64_t index = std::min(int64_t(std::floor(float(from))), int64_t{how.input - 1});
  const double part = std::min(std::max(from - index, 0.0), 1.0);
  const int half = taps.max_size / 2;
  const int64_t begin = index - half + 1, first = std::max(begin, int64_t{0});
  const int size = int(std::min(index + half + 1, int64_t{how.input}) - first);
  double* weights = taps.weights.data() + size_t(n) * taps.max_size;
  int to = 0;
  for (int k = 0; k < taps.max_size; ++k, ++to) {
    if (begin + k <= 0) to = 0;
    else if (begin + k >= how.input - 1) to = size - 1;
    weights[to] += apply_filter(how, k + 1 - half - part);
    taps.highest = std::max(taps.highest, weights[to]);
  }
  taps.first[n] = int32_t(first), taps.sizes[n] = size;
}

RealTaps weigh(const Resampling& how, bool is_float) {
  RealTaps taps;
  const double scale = round_to(is_float, double(how.input) / how.output);
  const double width = how.is_cubic ? 4 : 2;
  const double support = width / 2 * std::max(scale, 1.0);
  taps.max_size = how.antialias ? int(std::ceil(support)) * 2 + 1 : int(width);
  taps.weights.assign(size_t(how.output) * taps.max_size, 0);
  taps.first.resize(how.output), taps.sizes.resize(how.output);
  for (int n = 0; n < how.output; ++n) {
    if (how.antialias) weigh_support(how, is_float, scale, support, n, taps);
    else weigh_nearest(how, is_float, scale, n, taps);
  }
  return taps;
}

// Returns the most fraction bits with which the highest weight fits int16.
int find_precision(double highest) {
  int precision = 0;
  while (precision < kMaxPrecision && int(0.5 + highest * (1 << (precision + 1))) < 1 << 15)
    ++precision;
  return precision;
}

int16_t round_weight(double weight, int precision) {
  const double scaled = weight * (1 << precision);
  return int16_t(scaled < 0 ? int(scaled - 0.5) : int(scaled + 0.5));
}

// An output is its input.
RealTaps weigh_identity(int count) {
  RealTaps taps;
  taps.max_size = 1, taps.highest = 1;
  taps.weights.assign(count, 1);
  taps.sizes.assign(count, 1), taps.first.resize(count);
  for (int n = 0; n < count; ++n) taps.first[n] = n;
  return taps;
}

// Real numbers, before they are rounded.
RealTaps compute_real_taps(const Resampling& how, bool is_float) {
  return how.input == how.output ? weigh_identity(how.output) : weigh(how, is_float);
}

// Reverses the order of rows of `size` values.
template <typename T>
void reverse_rows(std::vector<T>& values, int size) {
  const int count = int(values.size()) / size;
  for (int n = 0; n < count / 2; ++n) {
    T* const one = values.data() + size_t(n) * size;
    std::swap_ranges(one, one + size, values.data() + size_t(count - 1 - n) * size);
  }
}

}  // namespace

Taps compute_taps(const Resampling& how, int begin, int count, bool in_pairs) {
  const RealTaps real = compute_real_taps(how, false);
  Taps taps;
  taps.count = count, taps.precision = find_precision(real.highest), taps.max_size = 2;
  taps.first.resize(count), taps.sizes.resize(count);
  // Most outputs begin as the one in the middle does: at half the size, at odd inputs.
  taps.phase = in_pairs ? real.first[begin + count / 2] % 2 : 0;
  for (int n = 0; n < count; ++n) {
    const int from = begin + n;
    const double* weights = real.weights.data() + size_t(from) * real.max_size;
    int size = real.sizes[from];
    while (size > 1 && round_weight(weights[size - 1], taps.precision) == 0) --size;
    taps.first[n] = real.first[from] - (in_pairs ? (real.first[from] + taps.phase) % 2 : 0);
    taps.sizes[n] = size + real.first[from] - taps.first[n];
    taps.max_size = std::max(taps.max_size, (taps.sizes[n] + 1) / 2 * 2);
  }
  taps.weights.assign(size_t(count) * taps.max_size, 0);
  for (int n = 0; n < count; ++n) {
    const int from = begin + n, before = real.first[from] - taps.first[n];
    const double* weights = real.weights.data() + size_t(from) * real.max_size;
    int16_t* const own = taps.weights.data() + size_t(n) * taps.max_size;
    for (int k = before; k < taps.sizes[n]; ++k)
      own[k] = round_weight(weights[k - before], taps.precision);
  }
  return taps;
}

FloatTaps compute_float_taps(const Resampling& how, int begin, int count) {
  const RealTaps real = compute_real_taps(how, true);
  FloatTaps taps;
  taps.count = count, taps.size = 1;
  for (int n = begin; n < begin + count; ++n) taps.size = std::max(taps.size, real.sizes[n]);
  taps.first.resize(count);
  taps.weights.assign(size_t(count) * taps.size, 0);
  for (int n = 0; n < count; ++n) {
    const int from = begin + n, first = std::min(real.first[from], how.input - taps.size);
    const double* const weights = real.weights.data() + size_t(from) * real.max_size;
    taps.first[n] = first;
    std::copy_n(weights, real.sizes[from],
                taps.weights.data() + size_t(n) * taps.size + (real.first[from] - first));
  }
  return taps;
}

void reverse_taps(Taps& taps) {
  reverse_rows(taps.first, 1);
  reverse_rows(taps.sizes, 1);
  reverse_rows(taps.weights, taps.max_size);
}

void reverse_taps(FloatTaps& taps) {
  reverse_rows(taps.first, 1);
  reverse_rows(taps.weights, taps.size);
}

}  // namespace gpupipe
