#include "color_filters.h"

#include <cmath>
#include <vector>

#include "float_colors.h"

namespace gpupipe {
namespace {

constexpr double kNegligible = 1e-9;  // a weight that changes no level, and no float of 0 to 1

// Returns the first half of the weights of a Gaussian, and the middle: they are symmetric. Leaves
// out those at the ends that change nothing.
std::vector<float> weigh_gaussian(int size, double sigma) {
  const int half = size / 2;
  std::vector<double> weights(size_t(half) + 1);
  double sum = 0;
  for (int n = 0; n <= half; ++n) {
    const double distance = (n - half) / sigma;
    weights[size_t(n)] = std::exp(-0.5 * distance * distance);
    sum += (n < half ? 2 : 1) * weights[size_t(n)];
  }
  std::vector<float> rounded;
  for (const double weight : weights)
    if (weight / sum > kNegligible) rounded.push_back(float(weight / sum));
  return rounded;
}

// Returns the index of a row or column that is mirrored at the border, without the border itself.
int mirror(int n, int size) { return n < 0 ? -n : n >= size ? 2 * (size - 1) - n : n; }

// Fills `half` pixels on both sides of a row of numbers with its mirrored pixels.
void mirror_ends(float* numbers, int width, int channels, int half) {
  const auto copy = [=](int to, int from) {
    std::memcpy(numbers + to * channels, numbers + from * channels,
                size_t(channels) * sizeof(float));
  };
  for (int n = 1; n <= half; ++n) {
    copy(-n, n);
    copy(width - 1 + n, width - 1 - n);
  }
}

const Filters<uint8_t>& get_filters(const ColorVariant& variant, const uint8_t*) {
  return variant.of_levels;
}

const Filters<float>& get_filters(const ColorVariant& variant, const float*) {
  return variant.of_floats;
}

void copy_limited(const uint8_t* from, uint8_t* to, int count) {
  std::memcpy(to, from, size_t(count));
}

void copy_limited(const float* from, float* to, int count) {
  for (int n = 0; n < count; ++n) to[n] = floats::limit(from[n]);
}

template <typename Value>
Value* find_row(const Image& image, int row) {
  return reinterpret_cast<Value*>(image.row(row));
}

template <typename Value>
void sharpen_piece(double factor, const ColorVariant& variant, const Image& image,
                   const Image& sharp) {
  const Filters<Value>& filters = get_filters(variant, static_cast<const Value*>(nullptr));
  const int step = image.channels, count = (image.width - 2) * step, last = image.height - 1;
  for (const int n : {0, last})
    copy_limited(find_row<Value>(image, n), find_row<Value>(sharp, n), image.width * step);
  for (int n = 1; n < last; ++n) {
    const Value* rows[3];
    for (int k = 0; k < 3; ++k) rows[k] = find_row<Value>(image, n - 1 + k) + step;
    Value* const to = find_row<Value>(sharp, n) + step;
    filters.sharpen(rows, to, count, step, float(1.0 - factor));
    copy_limited(rows[1] - step, to - step, step);
    copy_limited(rows[1] + count, to + count, step);
  }
}

// The weights of both axes, and the row of numbers between them, with mirrored ends.
struct Blur {
  const std::vector<float> x, y;
  float* const padded;

  int half_x() const { return int(x.size()) - 1; }
  int half_y() const { return int(y.size()) - 1; }
};

template <typename Value>
void blur_piece(const Blur& how, const ColorVariant& variant, const Image& image,
                const Image& blurred) {
  const Filters<Value>& filters = get_filters(variant, static_cast<const Value*>(nullptr));
  const int half_x = how.half_x(), half_y = how.half_y(), channels = image.channels;
  const int count = image.width * channels;
  float* const sums = how.padded + half_x * channels;
  std::vector<const Value*> rows(size_t(2 * half_y + 1));
  for (int n = 0; n < image.height; ++n) {
    for (int k = -half_y; k <= half_y; ++k)
      rows[size_t(k + half_y)] = find_row<Value>(image, mirror(n + k, image.height));
    filters.blur_column(rows.data(), how.y.data(), half_y, sums, count);
    mirror_ends(sums, image.width, channels, half_x);
    filters.blur_row(how.padded, how.x.data(), half_x, channels, find_row<Value>(blurred, n),
                     count);
  }
}

// Calls run(piece, result, a value of its type) for each piece of an image; sets the image to the
// results.
template <typename Run>
void filter_pieces(Image* image, Arena& arena, const Run& run) {
  const Image result = take_alike(arena, *image, image->height, image->width);
  for (int n = 0; n < image->pieces(); ++n) {
    if (image->item_size == 1) run(image->piece(n), result.piece(n), uint8_t{});
    else run(image->piece(n), result.piece(n), float{});
  }
  *image = result;
}

}  // namespace

void sharpen(double factor, const ColorVariant& variant, Image* image, Arena& arena) {
  if (image->height < 3 || image->width < 3) return;
  filter_pieces(image, arena, [&](const Image& piece, const Image& sharp, auto value) {
    sharpen_piece<decltype(value)>(factor, variant, piece, sharp);
  });
}

bool blur(const int size[2], const double sigma[2], const ColorVariant& variant, Image* image,
          Arena& arena) {
  if (image->width <= size[0] / 2 || image->height <= size[1] / 2) return false;
  std::vector<float> x = weigh_gaussian(size[0], sigma[0]);
  const size_t pixels = size_t(image->width) + 2 * x.size();
  const Blur how = {std::move(x), weigh_gaussian(size[1], sigma[1]),
                    reinterpret_cast<float*>(
                        arena.take(pixels * size_t(image->channels) * sizeof(float)))};
  filter_pieces(image, arena, [&](const Image& piece, const Image& blurred, auto value) {
    blur_piece<decltype(value)>(how, variant, piece, blurred);
  });
  return true;
}

}  // namespace gpupipe
