// Changes of the colours of images of float32. A change of contrast needs the mean of the luma
// after the changes before it, which a pass of its own computes.
#include "color.h"
#include "variant.h"

namespace gpupipe {
namespace {

// Runs changes on parts of an image. Writes them to another unless its pixels are null; then
// returns the sum of the luma.
double run_changes(const std::vector<FloatChange>& changes, const FloatVariant& variant,
                   const Image& image, const Image& to) {
  double sum = 0;
  for (int row = 0; row < image.height; ++row) {
    const float* const from = reinterpret_cast<const float*>(image.row(row));
    float* const target = to.pixels ? reinterpret_cast<float*>(to.row(row)) : nullptr;
    for (int begin = 0; begin < image.width; begin += kFloatPart) {
      const int64_t at = int64_t{begin} * image.channels;
      sum += variant.change_colors(changes.data(), int(changes.size()), from + at,
                                   target ? target + at : nullptr, image.channels,
                                   std::min(kFloatPart, image.width - begin));
    }
  }
  return sum;
}

// Returns whether floats have the change.
bool find_change(const ColorChange& change, FloatChange* found) {
  const float value = float(change.values[0]);
  switch (change.color) {
    case Color::kBrightness:
      *found = {FloatChange::kScale, value, 0};
      return true;
    case Color::kInvert:
      *found = {FloatChange::kInvert, 0, 0};
      return true;
    case Color::kLinear:
      *found = {FloatChange::kScale, value, float(change.values[1])};
      return true;
    case Color::kSolarize:
      *found = {FloatChange::kSolarize, value, 0};
      return true;
    case Color::kSaturation:
      *found = {FloatChange::kSaturation, value, 0};
      return true;
    case Color::kHue:
      *found = {FloatChange::kHue, value, 0};
      return true;
    case Color::kGray:
      *found = {FloatChange::kGray, 0, 0};
      return true;
    default:
      return false;
  }
}

}  // namespace

bool change_float_colors(const std::vector<ColorChange>& changes, const FloatVariant& variant,
                         Image* image, Arena& arena) {
  std::vector<FloatChange> waiting;
  const double pixels = double(image->height) * image->width;
  for (const ColorChange& change : changes) {
    FloatChange found;
    if (change.color == Color::kContrast) {
      const float mean = float(run_changes(waiting, variant, *image, {}) / pixels);
      const float factor = float(change.values[0]);
      waiting.push_back({FloatChange::kScale, factor, mean * (1.0f - factor)});
      continue;
    }
    if (!find_change(change, &found)) return false;
    const bool needs_rgb = found.kind >= FloatChange::kSaturation;
    if (!needs_rgb || image->channels == kChannels) waiting.push_back(found);
  }
  if (waiting.empty()) return true;
  const Image result = image->is_writable ? *image
                                          : take_image(arena, image->height, image->width,
                                                       image->channels, image->item_size);
  run_changes(waiting, variant, *image, result);
  *image = result;
  return true;
}

}  // namespace gpupipe
