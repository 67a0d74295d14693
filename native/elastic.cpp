#include "elastic.h"

#include <algorithm>

namespace gpupipe {
namespace {

// Returns the row or column that lies at `n` of an axis that is mirrored at both ends.
int reflect(int n, int size) { return n < 0 ? -n : n >= size ? 2 * (size - 1) - n : n; }

float* take_numbers(Arena& arena, size_t count) {
  return reinterpret_cast<float*>(arena.take(count * sizeof(float)));
}

}  // namespace

Displacements::Displacements(const FieldLoops& loops, const Elastic& elastic, int64_t seed,
                             int height, int width, Arena& arena)
    : loops_(loops), elastic_(elastic), height_(height), width_(width) {
  const size_t rows = 2 * size_t(std::max(elastic.half[0], elastic.half[1])) + 1;
  rows_ = reinterpret_cast<const float**>(arena.take(rows * sizeof(float*)));
  for (int axis = 0; axis < 2; ++axis) draw_plane(axis, make_field_key(seed), arena);
}

// Draws the numbers of an axis between -1 and 1, and blurs them along x.
void Displacements::draw_plane(int axis, FieldKey key, Arena& arena) {
  const int half = elastic_.half[axis];
  planes_[axis] = take_numbers(arena, size_t(height_) * size_t(width_));
  const Arena::Mark mark = arena.mark();
  float* const padded = take_numbers(arena, size_t(width_) + 2 * size_t(half));
  for (int n = 0; n <= 2 * half; ++n) rows_[n] = padded + n;
  for (int row = 0; row < height_; ++row) {
    const int64_t first = (int64_t{axis} * height_ + row) * width_;
    loops_.draw_uniform(key, uint32_t(first), width_, padded + half);
    for (int n = half; n < half + width_; ++n) padded[n] = padded[n] * 2.0f - 1.0f;
    for (int n = 1; n <= half; ++n) {
      padded[half - n] = padded[half + n];
      padded[half + width_ - 1 + n] = padded[half + width_ - 1 - n];
    }
    loops_.blur_rows(rows_, elastic_.kernels[axis], half, width_,
                     planes_[axis] + int64_t{row} * width_);
  }
  arena.release(mark);
}

void Displacements::fill_row(int axis, int row, float* numbers) const {
  const int half = elastic_.half[axis];
  for (int n = 0; n <= 2 * half; ++n)
    rows_[n] = planes_[axis] + int64_t{reflect(row + n - half, height_)} * width_;
  loops_.blur_rows(rows_, elastic_.kernels[axis] + half + 1, half, width_, numbers);
  const float alpha = elastic_.alpha[axis], side = float(axis == 0 ? width_ : height_);
  for (int n = 0; n < width_; ++n) numbers[n] = numbers[n] * alpha / side;
}

namespace {

// The channels of a pixel.
typedef float Lanes __attribute__((vector_size(16)));
typedef int32_t Bits __attribute__((vector_size(16)));

// Reads four levels.
inline Lanes load_levels(const uint8_t* levels) {
  int32_t bits;
  std::memcpy(&bits, levels, sizeof(bits));
#if defined(__clang__) || (defined(__GNUC__) && __GNUC__ >= 12)
  typedef int8_t Bytes __attribute__((vector_size(16)));
  typedef int16_t Words __attribute__((vector_size(16)));
  const Bits first = {bits, 0, 0, 0};
  const Bytes bytes = __builtin_shufflevector(Bytes(first), Bytes{}, 0, 16, 1, 17, 2, 18, 3, 19, 4,
                                              20, 5, 21, 6, 22, 7, 23);
  const Words words = __builtin_shufflevector(Words(bytes), Words{}, 0, 8, 1, 9, 2, 10, 3, 11);
  return __builtin_convertvector(Bits(words), Lanes);
#else
  return Lanes{float(levels[0]), float(levels[1]), float(levels[2]), float(levels[3])};
#endif
}

template <typename Value>
Lanes load(const uint8_t* pixel);

template <>
inline Lanes load<uint8_t>(const uint8_t* pixel) {
  return load_levels(pixel);
}

template <>
inline Lanes load<float>(const uint8_t* pixel) {
  Lanes lanes;
  std::memcpy(&lanes, pixel, sizeof(lanes));
  return lanes;
}

template <typename Value, int kCount>
inline void store(Lanes lanes, uint8_t* pixel) {
  if constexpr (sizeof(Value) == sizeof(float)) {
    std::memcpy(pixel, &lanes, kCount * sizeof(float));
  } else {
    // Adding 1.5 * 2**23 rounds halves to even, and leaves the level in the low bits.
    const Lanes zero = {}, max = zero + 255.0f;
    lanes = lanes > zero ? lanes : zero;
    lanes = lanes < max ? lanes : max;
    const Bits bits = Bits(lanes + 12582912.0f);
    for (int c = 0; c < kCount; ++c) pixel[c] = uint8_t(bits[c]);
  }
}

// torch's linspace((1 - size) / size, (size - 1) / size, size): where pixels lie between -1 and 1.
float find_base(int n, int size) {
  const float end = float((size - 1.0) / size), start = -end;
  if (size == 1) return start;
  const float step = (end - start) / float(size - 1);
  return n < size / 2 ? start + step * float(n) : end - step * float(size - 1 - n);
}

// Where the pixels of a row come from, along one axis.
struct Places {
  float* moves;    // the displacements
  int32_t* first;  // the pixel at or before a place
  float* rest;     // the way from there to the place

  Places(Arena& arena, int width)
      : moves(take_numbers(arena, size_t(width))),
        first(reinterpret_cast<int32_t*>(take_numbers(arena, size_t(width)))),
        rest(take_numbers(arena, size_t(width))) {}

  // Computes the places from moves, and from `base`: for each pixel if `step` is 1, or one for all
  // if it is 0. `size` is that of the axis.
  void find(const float* base, int step, int width, int size) {
    const float half = float(size) / 2.0f, max = float(size) + 1.0f;
    for (int n = 0; n < width; ++n) {
      float place = (base[n * step] + moves[n] + 1.0f) * half - 0.5f;
      place = place > -2.0f ? place : -2.0f;  // what is further outside stays outside
      place = place < max ? place : max;
      const int32_t truncated = int32_t(place);
      first[n] = truncated - (place < float(truncated) ? 1 : 0);
      rest[n] = place - float(first[n]);
    }
  }
};

template <typename Value, int kCount>
class Mover {
 public:
  Mover(const Image& image, const Remap& how)
      : image_(image),
        max_column_(image.width > kLast ? unsigned(image.width - kLast) : 0),
        max_row_(unsigned(image.height - 1)) {
    std::memcpy(&fill_, how.fill, sizeof(fill_));
  }

  void move_row(const Places& x, const Places& y, bool is_bilinear, uint8_t* pixel) const {
    for (int n = 0; n < image_.width; ++n, pixel += kPixel) {
      const int column = x.first[n], row = y.first[n];
      store<Value, kCount>(is_bilinear ? interpolate(column, row, x.rest[n], y.rest[n])
                                       : take_nearest(column, row, x.rest[n], y.rest[n]),
                           pixel);
    }
  }

 private:
  static constexpr int kPixel = kCount * int(sizeof(Value));
  static constexpr int kLast = (4 + kCount - 1) / kCount;  // pixels that hold four values

  Lanes take_nearest(int column, int row, float east, float south) const {
    column += round_rest(column, east), row += round_rest(row, south);
    return is_inside(column, row) ? read_alone(column, row) : fill_;
  }

  // Returns 1 if the next pixel is nearer; a half is rounded to an even pixel.
  static int round_rest(int first, float rest) {
    return rest > 0.5f || (rest == 0.5f && first % 2 != 0) ? 1 : 0;
  }

  // The operations are those of torch's grid_sample, and of torchvision's fill, in their order.
  Lanes interpolate(int column, int row, float east, float south) const {
    const float west = 1.0f - east, north = 1.0f - south;
    const float weights[4] = {west * north, east * north, west * south, east * south};
    Lanes sum;
    float mask;
    // Four values are read from each pixel on: none of them lies after the row.
    if (unsigned(column) < max_column_ && unsigned(row) < max_row_) {
      const uint8_t* const above = image_.row(row) + int64_t{column} * kPixel;
      const uint8_t* const below = above + image_.stride;
      sum = load<Value>(above) * weights[0] + load<Value>(above + kPixel) * weights[1] +
            load<Value>(below) * weights[2] + load<Value>(below + kPixel) * weights[3];
      mask = weights[0] + weights[1] + weights[2] + weights[3];
    } else {
      sum = Lanes{};
      mask = 0.0f;
      for (int n = 0; n < 4; ++n) {
        if (!is_inside(column + n % 2, row + n / 2)) continue;
        sum += read_alone(column + n % 2, row + n / 2) * weights[n];
        mask += weights[n];
      }
    }
    return (sum - fill_) * mask + fill_;
  }

  bool is_inside(int column, int row) const {
    return column >= 0 && row >= 0 && column < image_.width && row < image_.height;
  }

  // Reads a pixel, and nothing after it.
  Lanes read_alone(int column, int row) const {
    uint8_t values[4 * sizeof(Value)] = {};
    std::memcpy(values, image_.row(row) + int64_t{column} * kPixel, kPixel);
    return load<Value>(values);
  }

  const Image image_;
  const unsigned max_column_, max_row_;
  Lanes fill_;
};

template <typename Value, int kCount>
void remap_values(const Image& image, const Displacements& displacements, const Remap& how,
                  const Image& moved, Arena& arena) {
  const Mover<Value, kCount> mover(image, how);
  const int width = image.width, height = image.height;
  float* const base = take_numbers(arena, size_t(width));
  for (int n = 0; n < width; ++n) base[n] = find_base(n, width);
  Places x(arena, width), y(arena, width);
  for (int row = 0; row < height; ++row) {
    displacements.fill_row(0, row, x.moves);
    displacements.fill_row(1, row, y.moves);
    const float middle = find_base(row, height);
    x.find(base, 1, width, width);
    y.find(&middle, 0, width, height);
    mover.move_row(x, y, how.is_bilinear, moved.row(row));
  }
}

template <typename Value>
void remap_channels(const Image& image, const Displacements& displacements, const Remap& how,
                    const Image& moved, Arena& arena) {
  switch (image.channels) {
    case 1: return remap_values<Value, 1>(image, displacements, how, moved, arena);
    case 2: return remap_values<Value, 2>(image, displacements, how, moved, arena);
    case 3: return remap_values<Value, 3>(image, displacements, how, moved, arena);
    default: return remap_values<Value, 4>(image, displacements, how, moved, arena);
  }
}

}  // namespace

void remap(const Image& image, const Displacements& displacements, const Remap& how,
           const Image& moved, Arena& arena) {
  if (image.item_size == 1) {
    remap_channels<uint8_t>(image, displacements, how, moved, arena);
  } else {
    remap_channels<float>(image, displacements, how, moved, arena);
  }
}

}  // namespace gpupipe
