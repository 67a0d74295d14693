// How often the interpreter's lock is held, for gil.py. Loaded with ctypes.PyDLL.
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <chrono>
#include <cstdint>

using Clock = std::chrono::steady_clock;

// What a probe counts: tries to take the lock, those that had to wait, and nanoseconds.
struct Counts {
  int64_t tries, waits, waited_ns, spun_ns;
};

static int64_t nanoseconds(Clock::duration time) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(time).count();
}

// Tries to take the lock, 40 us after the last try on average, for so many seconds. A try waits if it
// takes longer than `least_ns`, which is longer than taking a free lock takes.
extern "C" __attribute__((visibility("default"))) void probe_lock(double seconds, int64_t least_ns,
                                                                  Counts* counts) {
  const auto end = Clock::now() + std::chrono::duration<double>(seconds);
  uint64_t state = 88172645463325252ull;
  PyThreadState* thread = PyEval_SaveThread();
  *counts = {};
  while (Clock::now() < end) {
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;  // xorshift64
    const auto begin = Clock::now(), until = begin + std::chrono::nanoseconds(20000 + state % 40000);
    auto before = begin;
    while (before < until) before = Clock::now();
    PyEval_RestoreThread(thread);
    const int64_t waited = nanoseconds(Clock::now() - before);
    thread = PyEval_SaveThread();
    ++counts->tries;
    counts->spun_ns += nanoseconds(before - begin);
    if (waited <= least_ns) continue;
    ++counts->waits;
    counts->waited_ns += waited;
  }
  PyEval_RestoreThread(thread);
}
