// Changes of the colours of images of float32, in as few passes as their order allows: see color.h.
#include <algorithm>

#include "color.h"
#include "color_filters.h"
#include "variant.h"

namespace gpupipe {

namespace {

// Whether all changes of an image are of the first kinds, up to `last`.
bool are_until(FloatChange::Kind last, const Image& image) {
  return std::all_of(image.changes, image.changes + image.num_changes,
                     [=](const FloatChange& change) { return change.kind <= last; });
}

// Runs the changes of an image on so many pixels from a row on.
void run_on_pixels(const FloatVariant& variant, const Image& image, int row, const Image& to,
                   int to_row, int64_t count, FloatStatistics* statistics, bool is_streamed) {
  const auto find = [](const Image& of, int n) { return reinterpret_cast<float*>(of.row(n)); };
  const auto find_plane = [](const Image& of) {
    return of.has_planes() ? of.plane / int64_t{sizeof(float)} : 0;
  };
  float* const target = to.pixels ? find(to, to_row) : nullptr;
  FloatPart part = {find(image, row), find_plane(image), target,      find_plane(to),
                    image.channels,   count,             is_streamed, statistics};
  // Values of interleaved pixels need not be taken apart.
  if (!part.from_plane && !part.to_plane && !statistics && are_until(FloatChange::kGamma, image))
    part.count *= part.channels, part.channels = 1;
  variant.change_colors(image.changes, image.num_changes, part);
}

// Runs changes of which each has one plane, one plane after the other: three that are read and
// written in turns take memory half as long again.
void run_on_planes(const FloatVariant& variant, const Image& image, const Image& to,
                   bool is_streamed, bool is_reversed) {
  std::vector<FloatChange> changes(image.changes, image.changes + image.num_changes);
  for (int c = 0; c < image.channels; ++c) {
    for (FloatChange& change : changes)
      change.low[0] = change.low[c], change.range[0] = change.range[c];
    Image plane = image.piece(c);
    plane.changes = changes.data();
    run_float_changes(variant, plane, to.piece(c), nullptr, is_streamed, is_reversed);
  }
}

}  // namespace

void run_float_changes(const FloatVariant& variant, const Image& image, const Image& to,
                       FloatStatistics* statistics, bool is_streamed, bool is_reversed) {
  const auto is_packed = [](const Image& of) { return of.stride == of.row_size(); };
  const bool has_planes = image.has_planes() && to.has_planes() && image.channels == to.channels;
  if (has_planes && is_packed(image) && !statistics && are_until(FloatChange::kNormalize, image))
    return run_on_planes(variant, image, to, is_streamed, is_reversed);
  if (is_packed(image) && (!to.pixels || is_packed(to)) && !is_reversed) {
    const int64_t count = int64_t{image.height} * image.width;
    run_on_pixels(variant, image, 0, to, 0, count, statistics, is_streamed);
    return;
  }
  for (int n = 0; n < image.height; ++n) {
    const int row = is_reversed ? image.height - 1 - n : n;
    fetch_row(image, is_reversed ? row - kRowsAhead : row + kRowsAhead);
    run_on_pixels(variant, image, row, to, n, image.width, statistics, is_streamed);
  }
}

void run_float_changes_of_row(const FloatVariant& variant, const Image& image, int row,
                              const Image& to) {
  run_on_pixels(variant, image, row, to, 0, image.width, nullptr, false);
}

void make_float_changes(const FloatVariant& variant, Image* image, Arena& arena) {
  const bool is_own = image->is_writable;
  Image result = is_own ? *image : take_alike(arena, *image, image->height, image->width);
  run_float_changes(variant, *image, result, nullptr);
  result.changes = nullptr, result.num_changes = 0;
  *image = result;
}

namespace {

// Takes an image through changes. A pass is put off until the next change needs its result.
class FloatRun {
 public:
  FloatRun(const Variant& variant, Image* image, Arena& arena)
      : variant_(variant), image_(*image), arena_(arena) {}

  // Returns false if floats have no such change, or the image is too small for the border of a
  // blur.
  bool add(const ColorChange& change);

  // Returns the image after all changes, which the next stage makes.
  Image finish() {
    if (waiting_.empty()) return image_;
    const size_t bytes = waiting_.size() * sizeof(FloatChange);
    uint8_t* const memory = arena_.take(bytes);
    std::memcpy(memory, waiting_.data(), bytes);
    image_.changes = reinterpret_cast<const FloatChange*>(memory);
    image_.num_changes = int(waiting_.size());
    return image_;
  }

 private:
  void add_waiting(FloatChange::Kind kind, double factor = 0, double offset = 0) {
    const bool needs_rgb = kind >= FloatChange::kSaturation;
    if (needs_rgb && image_.channels != kChannels) return;
    waiting_.push_back({kind, float(factor), float(offset)});
  }

  // The image with the changes that wait.
  Image image() const {
    Image changed = image_;
    changed.changes = waiting_.data(), changed.num_changes = int(waiting_.size());
    return changed;
  }

  // Makes the changes that wait.
  void write(int channels) {
    if (waiting_.empty()) return;
    if (channels == image_.channels) {
      Image changed = image();
      make_float_changes(*variant_.floats, &changed, arena_);
      image_ = changed;
    } else {
      Image shape = image_;
      shape.channels = channels;
      if (channels == 1) shape.plane = Image::kInterleaved;
      const Image result = take_alike(arena_, shape, image_.height, image_.width);
      run_float_changes(*variant_.floats, image(), result, nullptr);
      image_ = result;
    }
    waiting_.clear();
  }

  // Adds the pixels after the changes that wait to statistics, and keeps what is costly to compute.
  void measure(FloatStatistics& statistics) {
    for (const FloatChange& change : waiting_)
      if (change.kind == FloatChange::kHue || change.kind == FloatChange::kGamma) {
        write(image_.channels);
        break;
      }
    run_float_changes(*variant_.floats, image(), {}, &statistics);
  }

  double find_mean(FloatStatistics::Kind kind, int values) {
    FloatStatistics statistics = {kind};
    measure(statistics);
    return statistics.sum / (double(image_.height) * image_.width * values);
  }

  void stretch() {
    FloatStatistics statistics = {FloatStatistics::kExtremes};
    measure(statistics);
    add_waiting(FloatChange::kStretch);
    FloatChange& change = waiting_.back();
    for (int c = 0; c < image_.channels; ++c) {
      const bool is_flat = statistics.low[c] == statistics.high[c];
      change.low[c] = is_flat ? 0.0f : statistics.low[c];
      change.range[c] = is_flat ? 1.0f : statistics.high[c] - statistics.low[c];
    }
  }

  const Variant& variant_;
  Image image_;
  Arena& arena_;
  std::vector<FloatChange> waiting_;
};

bool FloatRun::add(const ColorChange& change) {
  const double* const values = change.values;
  switch (change.color) {
    case Color::kBrightness:
      add_waiting(FloatChange::kScale, values[0]);
      return true;
    case Color::kContrast: {
      const float mean = float(find_mean(FloatStatistics::kLuma, 1)), factor = float(values[0]);
      add_waiting(FloatChange::kScale, factor, mean * (1.0f - factor));
      return true;
    }
    case Color::kLinear:
      add_waiting(FloatChange::kScale, values[0], values[1]);
      return true;
    case Color::kLinearByMean: {
      const double mean = find_mean(FloatStatistics::kValues, image_.channels);
      add_waiting(FloatChange::kScale, values[0], values[1] * mean);
      return true;
    }
    case Color::kInvert:
      add_waiting(FloatChange::kInvert);
      return true;
    case Color::kSolarize:
      add_waiting(FloatChange::kSolarize, values[0]);
      return true;
    case Color::kGamma:
      add_waiting(FloatChange::kGamma, values[0]);
      return true;
    case Color::kAutocontrast:
      stretch();
      return true;
    case Color::kSaturation:
      add_waiting(FloatChange::kSaturation, values[0]);
      return true;
    case Color::kHue:
      add_waiting(FloatChange::kHue, values[0]);
      return true;
    case Color::kGray:
      add_waiting(FloatChange::kGray);
      return true;
    case Color::kToGray:
      add_waiting(FloatChange::kToGray);
      write(1);
      return true;
    case Color::kToRgb:
      if (image_.channels == 1) add_waiting(FloatChange::kToRgb);
      write(kChannels);
      return true;
    case Color::kPermute:
      add_waiting(FloatChange::kPermute);
      if (image_.channels == kChannels)
        for (int c = 0; c < kChannels; ++c) waiting_.back().order[c] = int(values[c]);
      return true;
    case Color::kSharpness:
      write(image_.channels);
      sharpen(values[0], *variant_.color, &image_, arena_);
      return true;
    case Color::kBlur: {
      write(image_.channels);
      const int size[] = {int(values[0]), int(values[1])};
      return blur(size, values + 2, *variant_.color, &image_, arena_);
    }
    default:
      return false;
  }
}

}  // namespace

bool change_float_colors(const std::vector<ColorChange>& changes, const Variant& variant,
                         Image* image, Arena& arena) {
  FloatRun run(variant, image, arena);
  for (const ColorChange& change : changes)
    if (!run.add(change)) return false;
  *image = run.finish();
  return true;
}

}  // namespace gpupipe
