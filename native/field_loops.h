// The loops of fields.h. fields.cpp includes this file once for each instruction set, with the
// names LOOPS, a namespace; LOOPS_TARGET, the attributes of its functions; and LOOPS_BYTES, the
// size of a vector. So there is no guard.

namespace gpupipe::LOOPS {
namespace {

LOOPS_TARGET void draw_normal(FieldKey key, uint32_t block, float* numbers) {
  constexpr int kHalf = kFieldBlock / 2;
  const uint32_t first = block * kFieldBlock;
  for (int n = 0; n < kHalf; ++n) {
    const uint32_t a = hash_number(first + n, key), b = hash_number(first + kHalf + n, key);
    const float radius = std::sqrt(-2.0f * log_of(to_fraction(a)));
    // The 24 low bits are an angle in an eighth of the circle on both sides of an axis.
    const float angle = (float(int32_t(b & 0xffffff)) - 8388607.5f) * kEighthTurn;
    const float z = angle * angle;
    const float sine = sine_of(angle, z);
    const float cosine = with_sign(cosine_of(z), b);
    const int32_t swap = -int32_t(b >> 30 & 1);  // a conditional is not vectorised by all compilers
    numbers[n] = radius * select(swap, sine, cosine);
    numbers[kHalf + n] = radius * select(swap, cosine, sine);
  }
}

LOOPS_TARGET void draw_uniform(FieldKey key, uint32_t first, int64_t count, float* numbers) {
  for (int64_t n = 0; n < count; ++n) {
    const uint32_t hash = hash_number(first + uint32_t(n), key);
    numbers[n] = float(int32_t(hash >> 8)) * 5.9604644775390625e-8f;  // 2**-24
  }
}

LOOPS_TARGET void add_to_levels(const uint8_t* levels, const float* noise, int64_t count,
                                float scale, float mean, uint8_t* sums) {
  for (int64_t n = 0; n < count; ++n) {
    float value = noise[n] * scale + mean;
    value = value > -255.0f ? value : -255.0f;
    value = value < 255.0f ? value : 255.0f;
    const int32_t sum = levels[n] + int32_t(value);
    sums[n] = uint8_t(sum < 0 ? 0 : sum > 255 ? 255 : sum);
  }
}

LOOPS_TARGET void add_to_numbers(const float* numbers, const float* noise, int64_t count,
                                 float scale, float mean, bool clip, float* sums) {
  const float min = clip ? 0.0f : -HUGE_VALF, max = clip ? 1.0f : HUGE_VALF;
  for (int64_t n = 0; n < count; ++n) {
    const float sum = numbers[n] + (noise[n] * scale + mean);
    const float above = sum < min ? min : sum;  // NaN stays, as in torch
    sums[n] = above > max ? max : above;
  }
}

LOOPS_TARGET void blur_rows(const float* const* rows, const float* weights, int half, int64_t count,
                            float* sums) {
  typedef float Lanes __attribute__((vector_size(LOOPS_BYTES)));
  constexpr int kLanes = sizeof(Lanes) / sizeof(float), kVectors = 4;
  int64_t n = 0;
  for (; n + kVectors * kLanes <= count; n += kVectors * kLanes) {
    Lanes vectors[kVectors], above, below;
    for (int v = 0; v < kVectors; ++v) {
      std::memcpy(&vectors[v], rows[half] + n + v * kLanes, sizeof(Lanes));
      vectors[v] *= weights[0];
    }
    for (int k = 1; k <= half; ++k) {
      const float *const up = rows[half - k] + n, *const down = rows[half + k] + n;
      for (int v = 0; v < kVectors; ++v) {
        std::memcpy(&above, up + v * kLanes, sizeof(Lanes));
        std::memcpy(&below, down + v * kLanes, sizeof(Lanes));
        vectors[v] += weights[k] * (above + below);
      }
    }
    std::memcpy(sums + n, vectors, sizeof(vectors));
  }
  for (; n < count; ++n) {
    float sum = rows[half][n] * weights[0];
    for (int k = 1; k <= half; ++k) sum += weights[k] * (rows[half - k][n] + rows[half + k][n]);
    sums[n] = sum;
  }
}

}  // namespace

const FieldLoops kFieldLoops = {draw_normal, draw_uniform, add_to_levels, add_to_numbers,
                                blur_rows};

}  // namespace gpupipe::LOOPS

#undef LOOPS
#undef LOOPS_TARGET
#undef LOOPS_BYTES
