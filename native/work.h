// Work that one extension hands to another in a capsule, to be done without the GIL.
#pragma once

namespace gpupipe {

constexpr char kWorkName[] = "gpupipe.work";

struct Work {
  // Returns whether it was done. Must not touch Python.
  bool (*run)(Work*);
};

}  // namespace gpupipe
