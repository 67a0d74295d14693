// What programs do between their stages.
#pragma once

#include <atomic>

#include "stage.h"
#include "variant.h"

namespace gpupipe {

extern std::atomic<const Variant*> g_variant;

// Looks the levels of an image up in its table, for a stage that takes none.
void make_changes(Image* image, Arena& arena);

// Interleaves the planes of an image, for a stage that takes none.
void interleave(Image* image, Arena& arena);

}  // namespace gpupipe
