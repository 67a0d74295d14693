// What programs do between their stages.
#pragma once

#include <atomic>

#include "stage.h"
#include "variant.h"

namespace gpupipe {

extern std::atomic<const Variant*> g_variant;

// Makes the changes of colours that an image still has ahead of it, for a stage that takes none: of
// levels by its table, of floats by computing.
void make_changes(Image* image, Arena& arena);

// Interleaves the planes of an image, for a stage that takes none.
void interleave(Image* image, Arena& arena);

}  // namespace gpupipe
