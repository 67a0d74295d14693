#include "color_filters.h"

#include <cmath>
#include <vector>

namespace gpupipe {
namespace {

// Returns the first half of the weights of a Gaussian, and the middle: they are symmetric.
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
  for (const double weight : weights) rounded.push_back(float(weight / sum));
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

}  // namespace

void sharpen(double factor, const ColorVariant& variant, Image* image, Arena& arena) {
  if (image->height < 3 || image->width < 3) return;
  const Image sharp = take_image(arena, image->height, image->width, image->channels);
  const int step = image->channels, count = (image->width - 2) * step, last = image->height - 1;
  std::memcpy(sharp.row(0), image->row(0), size_t(image->row_size()));
  std::memcpy(sharp.row(last), image->row(last), size_t(image->row_size()));
  for (int n = 1; n < last; ++n) {
    const uint8_t* const rows[] = {image->row(n - 1) + step, image->row(n) + step,
                                   image->row(n + 1) + step};
    variant.sharpen(rows, sharp.row(n) + step, count, step, float(1.0 - factor));
    std::memcpy(sharp.row(n), image->row(n), size_t(step));
    std::memcpy(sharp.row(n) + step + count, image->row(n) + step + count, size_t(step));
  }
  *image = sharp;
}

bool blur(const int size[2], const double sigma[2], const ColorVariant& variant, Image* image,
          Arena& arena) {
  const int half_x = size[0] / 2, half_y = size[1] / 2, channels = image->channels;
  if (image->width <= half_x || image->height <= half_y) return false;
  const std::vector<float> x = weigh_gaussian(size[0], sigma[0]);
  const std::vector<float> y = weigh_gaussian(size[1], sigma[1]);
  const Image blurred = take_image(arena, image->height, image->width, channels);
  const size_t numbers = size_t(image->width + 2 * half_x) * size_t(channels);
  float* const padded = reinterpret_cast<float*>(arena.take(numbers * sizeof(float)));
  float* const sums = padded + half_x * channels;
  std::vector<const uint8_t*> rows(size_t(2 * half_y + 1));
  for (int n = 0; n < image->height; ++n) {
    for (int k = -half_y; k <= half_y; ++k)
      rows[size_t(k + half_y)] = image->row(mirror(n + k, image->height));
    variant.blur_column(rows.data(), y.data(), half_y, sums, image->width * channels);
    mirror_ends(sums, image->width, channels, half_x);
    variant.blur_row(padded, x.data(), half_x, channels, blurred.row(n), image->width * channels);
  }
  *image = blurred;
  return true;
}

}  // namespace gpupipe
