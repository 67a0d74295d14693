#include "color.h"

#include <cmath>

#include "color_filters.h"
#include "color_statistics.h"
#include "color_tables.h"

namespace gpupipe {
namespace {

// What a pass does to a part of a row, in order.
struct Operation {
  enum Kind { kTables, kSaturation, kHue, kPermute, kToGray, kToRgb } kind;
  float factor = 0, rest = 0;
  int order[kChannels] = {0, 1, 2};
  LevelTables tables = {};
};

// Takes an image through changes. A pass is put off until the next change needs its result.
class ColorRun {
 public:
  ColorRun(const ColorVariant& variant, Image* image, Arena& arena)
      : variant_(variant), image_(*image), arena_(arena), channels_(image->channels) {
    uint8_t* const memory = arena.take((kChannels + 1) * kPart);
    for (int c = 0; c < kChannels; ++c) memory_[c] = memory + c * kPart;
    gray_ = memory + kChannels * kPart;
  }

  bool add(const ColorChange& change);

  // Returns the image after all changes.
  Image finish() {
    if (is_one_table()) {
      uint8_t* const table = arena_.take(kLevels);
      std::memcpy(table, operations_[0].tables.levels[0], kLevels);
      image_.table = table;
    } else {
      write();
    }
    return image_;
  }

 private:
  void add_table(const LevelTables& tables) {
    if (operations_.empty() || operations_.back().kind != Operation::kTables) {
      Operation& operation = operations_.emplace_back();
      operation.kind = Operation::kTables;
      operation.tables = tables;
    } else {
      operations_.back().tables.follow(tables);
    }
  }

  Operation& add_operation(Operation::Kind kind) {
    Operation& operation = operations_.emplace_back();
    operation.kind = kind;
    return operation;
  }

  // Whether what is put off is a table for all channels.
  bool is_one_table() const {
    return operations_.size() == 1 && operations_[0].kind == Operation::kTables &&
           operations_[0].tables.is_shared;
  }

  // Whether reading again costs less than writing: what is put off is at most a table.
  bool is_cheap() const {
    return operations_.empty() ||
           (operations_.size() == 1 && operations_[0].kind == Operation::kTables);
  }

  // Makes the operations. Three equal channels that come last are one plane.
  void write() {
    NoStatistics none;
    const bool is_gray = !operations_.empty() && operations_.back().kind == Operation::kToRgb;
    if (is_gray) operations_.pop_back(), channels_ = 1;
    if (is_one_table())
      look_up_levels(operations_[0].tables.levels[0], variant_, &image_, arena_);
    else if (!operations_.empty())
      pass(true, none);
    operations_.clear();
    if (!is_gray) return;
    channels_ = image_.channels = kChannels;
    image_.plane = 0, image_.is_writable = false;
  }

  // Returns the sum of the luma of all pixels after all operations.
  uint64_t sum_luma() {
    if (channels_ != kChannels || image_.channels != kChannels || image_.has_planes() ||
        !(operations_.empty() || is_one_table())) {
      LumaSum luma = {variant_, gray_};
      measure(luma);
      return luma.sum;
    }
    uint8_t* const looked_up = memory_[0];  // all three follow each other
    uint64_t sum = 0;
    each_part(image_, [&](const uint8_t* pixels, uint8_t*, int count) {
      if (!operations_.empty()) {
        variant_.look_up(pixels, looked_up, count * kChannels, operations_[0].tables.levels[0]);
        pixels = looked_up;
      }
      sum += variant_.sum_luma(pixels, count);
    });
    return sum;
  }

  // Returns the mean level of all channels after all operations.
  double find_mean() {
    LevelSum levels = {variant_};
    measure(levels);
    return double(levels.sum) / (double(image_.height) * image_.width * channels_);
  }

  // Adds the pixels after all operations to statistics, and keeps what was costly to compute.
  template <typename Statistics>
  void measure(Statistics& statistics) {
    const bool is_written = !is_cheap();
    pass(is_written, statistics);
    if (is_written) operations_.clear();
  }

  // Returns where a pass writes: the image itself if it may.
  Image find_target() {
    if (image_.is_writable && image_.channels == channels_) return image_;
    Image shape = image_;
    shape.channels = channels_;
    if (channels_ == 1) shape.plane = Image::kInterleaved;
    return take_alike(arena_, shape, image_.height, image_.width);
  }

  template <typename Statistics>
  void pass(bool is_written, Statistics& statistics) {
    const Image to = is_written ? find_target() : image_;
    each_part(to, [&](const uint8_t* from, uint8_t* pixels, int count) {
      for (size_t n = load(from, count); n < operations_.size(); ++n) apply(operations_[n], count);
      statistics.add(planes_, live_, count);
      if (is_written) store(pixels, to, count);
    });
    if (is_written) image_ = to;
  }

  // Calls run(from, to, count) for parts of at most kPart pixels of the image, and their place in
  // another.
  template <typename Run>
  void each_part(const Image& to, const Run& run) const {
    const bool is_packed = image_.stride == image_.row_size();  // so is another
    const int rows = is_packed ? 1 : image_.height;
    const int64_t width = int64_t{image_.width} * (is_packed ? image_.height : 1);
    for (int row = 0; row < rows; ++row)
      for (int64_t begin = 0; begin < width; begin += kPart)
        run(image_.row(row) + begin * image_.pixel_size(), to.row(row) + begin * to.pixel_size(),
            int(std::min<int64_t>(kPart, width - begin)));
  }

  // Returns how many operations are made with it.
  size_t load(const uint8_t* pixels, int count) {
    for (int c = 0; c < kChannels; ++c) planes_[c] = memory_[c];
    live_ = image_.channels;
    if (live_ == kChannels && !image_.has_planes()) {
      if (!operations_.empty() && operations_[0].kind == Operation::kToGray) {
        variant_.read_gray(pixels, planes_[0], count);
        live_ = 1;
        return 1;
      }
      variant_.split(pixels, planes_, count);
      return 0;
    }
    for (int c = 0; c < live_; ++c)
      std::memcpy(planes_[c], c ? pixels + c * image_.plane : pixels, size_t(count));
    return 0;
  }

  void store(uint8_t* pixels, const Image& to, int count) {
    if (live_ == kChannels && !to.has_planes()) {
      variant_.merge(planes_, pixels, count);
      return;
    }
    for (int c = 0; c < live_; ++c)
      std::memcpy(c ? pixels + c * to.plane : pixels, planes_[c], size_t(count));
  }

  void apply(const Operation& operation, int count);

  const ColorVariant& variant_;
  Image image_;
  Arena& arena_;
  int channels_;  // after the operations
  std::vector<Operation> operations_;
  uint8_t *memory_[kChannels], *planes_[kChannels], *gray_;
  int live_ = 0;  // channels of the part of a row at hand
};

void ColorRun::apply(const Operation& operation, int count) {
  switch (operation.kind) {
    case Operation::kTables:
      for (int c = 0; c < live_; ++c)
        variant_.look_up(planes_[c], planes_[c], count, operation.tables.levels[c]);
      return;
    case Operation::kSaturation:
      return variant_.adjust_saturation(planes_, count, operation.factor, operation.rest);
    case Operation::kHue:
      return variant_.adjust_hue(planes_, count, operation.factor);
    case Operation::kPermute: {
      uint8_t* const old[] = {planes_[0], planes_[1], planes_[2]};
      for (int c = 0; c < kChannels; ++c) planes_[c] = old[operation.order[c]];
      return;
    }
    case Operation::kToGray:
      variant_.compute_gray(planes_, gray_, count);
      std::memcpy(planes_[0], gray_, size_t(count));
      live_ = 1;
      return;
    case Operation::kToRgb:
      for (int c = 1; c < kChannels; ++c) std::memcpy(planes_[c], planes_[0], size_t(count));
      live_ = kChannels;
  }
}

bool ColorRun::add(const ColorChange& change) {
  const double* values = change.values;
  const int64_t pixels = int64_t{image_.height} * image_.width;
  LevelTables tables = {};
  switch (change.color) {
    case Color::kNone:
    case Color::kCount:
      return true;
    case Color::kGamma:
      return false;
    case Color::kTable:
      tables.set_all([&](int level) { return change.table[level]; });
      break;
    case Color::kBrightness:
      tables.set_brightness(float(values[0]));
      break;
    case Color::kPosterize:
      tables.set_all([&](int level) { return level & (0xff00 >> int(values[0])); });
      break;
    case Color::kSolarize:
      tables.set_all([&](int n) { return float(n) >= float(values[0]) ? kLevels - 1 - n : n; });
      break;
    case Color::kSolarizeAdd:
      tables.set_all([&](int n) { return n < kLevels / 2 ? n + int(values[0]) : n; });
      break;
    case Color::kInvert:
      tables.set_all([](int level) { return kLevels - 1 - level; });
      break;
    case Color::kContrast:
      tables.set_contrast(values[0], float(double(sum_luma()) / double(pixels)));
      break;
    case Color::kLinear:
      tables.set_linear(values[0], values[1] * (kLevels - 1));
      break;
    case Color::kLinearByMean:
      tables.set_linear(values[0], values[1] * find_mean());
      break;
    case Color::kAutocontrast: {
      Extremes extremes = {variant_};
      measure(extremes);
      for (int c = 0; c < channels_; ++c)
        tables.stretch(c, extremes.low[c], extremes.high[c]);
      tables.is_shared = channels_ == 1;
      break;
    }
    case Color::kEqualize: {
      Histograms histograms;
      measure(histograms);
      for (int c = 0; c < channels_; ++c) {
        int64_t counts[kLevels];
        histograms.sum(c, counts);
        tables.equalize(c, counts, pixels);
      }
      tables.is_shared = channels_ == 1;
      break;
    }
    case Color::kSaturation:
      if (channels_ != kChannels) return true;
      add_operation(Operation::kSaturation).factor = float(values[0]);
      operations_.back().rest = float(1.0 - values[0]);
      return true;
    case Color::kHue:
      if (channels_ == kChannels) add_operation(Operation::kHue).factor = float(values[0]);
      return true;
    case Color::kPermute:
      if (channels_ != kChannels) return true;
      add_operation(Operation::kPermute);
      for (int c = 0; c < kChannels; ++c) operations_.back().order[c] = int(values[c]);
      return true;
    case Color::kGray:
      if (channels_ != kChannels) return true;
      add_operation(Operation::kToGray);
      add_operation(Operation::kToRgb);
      return true;
    case Color::kToGray:
      if (channels_ == kChannels) add_operation(Operation::kToGray);
      channels_ = 1;
      return true;
    case Color::kToRgb:
      if (channels_ == 1) add_operation(Operation::kToRgb);
      channels_ = kChannels;
      return true;
    case Color::kSharpness:
      write();
      sharpen(values[0], variant_, &image_, arena_);
      return true;
    case Color::kBlur: {
      write();
      const int size[] = {int(values[0]), int(values[1])};
      return blur(size, values + 2, variant_, &image_, arena_);
    }
  }
  add_table(tables);
  return true;
}

bool is_between(double value, double low, double high) { return low <= value && value <= high; }

}  // namespace

void look_up_levels(const uint8_t* table, const ColorVariant& variant, Image* image,
                    Arena& arena) {
  const Image to =
      image->is_writable ? *image : take_alike(arena, *image, image->height, image->width);
  const bool is_packed = image->stride == image->row_size();  // so is another
  const int rows = is_packed ? 1 : image->height;
  const int64_t count = image->row_size() * (is_packed ? image->height : 1);
  for (int k = 0; k < image->pieces(); ++k)
    for (int n = 0; n < rows; ++n)
      variant.look_up(image->piece(k).row(n), to.piece(k).row(n), count, table);
  *image = to;
  image->table = nullptr;
}

const char* check_color(Color color, const double* values) {
  const auto is_odd = [](double n) { return is_between(n, 1, kMaxSide) && std::fmod(n, 2) == 1; };
  switch (color) {
    case Color::kHue:
      return is_between(values[0], -0.5, 0.5) ? nullptr : "a hue is not from -0.5 to 0.5";
    case Color::kPosterize:
      return is_between(values[0], 0, 8) ? nullptr : "the bits to keep are not from 0 to 8";
    case Color::kSolarizeAdd:
      return is_between(values[0], 0, 128) ? nullptr : "the levels to add are not from 0 to 128";
    case Color::kPermute:
      for (int c = 0; c < kChannels; ++c)
        if (!is_between(values[c], 0, kChannels - 1)) return "a channel is not from 0 to 2";
      return nullptr;
    case Color::kBlur:
      if (!is_odd(values[0]) || !is_odd(values[1])) return "the size of a blur is not odd";
      return values[2] > 0 && values[3] > 0 ? nullptr : "the sigma of a blur is not above 0";
    default:
      return color < Color::kNone || color >= Color::kCount ? "there is no such change" : nullptr;
  }
}

bool change_colors(const std::vector<ColorChange>& changes, const ColorVariant& variant,
                   Image* image, Arena& arena) {
  ColorRun run(variant, image, arena);
  for (const ColorChange& change : changes)
    if (!run.add(change)) return false;
  *image = run.finish();
  return true;
}

}  // namespace gpupipe
