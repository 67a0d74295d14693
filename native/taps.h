// The weights of a resize.
#pragma once

#include "variant.h"

namespace gpupipe {

// How one axis is resized, from `input` to `output` pixels.
struct Resampling {
  int input, output;
  bool is_cubic, antialias;

  bool operator==(const Resampling& other) const {
    return input == other.input && output == other.output && is_cubic == other.is_cubic &&
           antialias == other.antialias;
  }
};

// Returns the taps of `count` outputs from `begin` on. If `in_pairs`, each begins at a pair of
// inputs: see Taps::phase.
Taps compute_taps(const Resampling& how, int begin, int count, bool in_pairs);

// Returns the same for floats.
FloatTaps compute_float_taps(const Resampling& how, int begin, int count);

// Reverses the order of the outputs.
void reverse_taps(Taps& taps);
void reverse_taps(FloatTaps& taps);

}  // namespace gpupipe
