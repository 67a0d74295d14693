// How often the interpreter's lock is held, for gil.py. Loaded with ctypes.PyDLL.
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <sys/resource.h>

#include <chrono>
#include <cstdint>

using Clock = std::chrono::steady_clock;

// How often the system took the core away from this thread.
static long count_preemptions() {
  rusage usage;
  getrusage(RUSAGE_THREAD, &usage);
  return usage.ru_nivcsw;
}

// At about random moments, tries to take the lock; for so many seconds. Counts the tries, and those
// that had to wait for longer than `least_ns`, which is longer than taking a free lock takes. Tries in
// which the system took the core away are left out.
extern "C" __attribute__((visibility("default"))) void probe_lock(double seconds, int64_t least_ns,
                                                                  int64_t* tries, int64_t* waits) {
  const auto end = Clock::now() + std::chrono::duration<double>(seconds);
  uint64_t state = 88172645463325252ull;
  PyThreadState* thread = PyEval_SaveThread();
  *tries = *waits = 0;
  while (Clock::now() < end) {
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;  // xorshift64
    const auto until = Clock::now() + std::chrono::nanoseconds(20000 + state % 40000);
    while (Clock::now() < until) {
    }
    const long preemptions = count_preemptions();
    const auto before = Clock::now();
    PyEval_RestoreThread(thread);
    const auto waited = Clock::now() - before;
    thread = PyEval_SaveThread();
    if (count_preemptions() != preemptions) continue;
    ++*tries;
    *waits += waited > std::chrono::nanoseconds(least_ns);
  }
  PyEval_RestoreThread(thread);
}
