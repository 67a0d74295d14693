// How often the interpreter's lock is held, for gil.py. Loaded with ctypes.CDLL, which releases it.
//
// It reads the flag of the lock, and never takes the lock: a thread that asks for it would disturb
// those that hold it, and would count the time until it is woken. The flag is no public part of
// Python, so this file needs the headers of the Python that loads it.
#define Py_BUILD_CORE 1
#include <Python.h>
#include <internal/pycore_interp.h>
#include <internal/pycore_runtime.h>

#include <stdint.h>
#include <sys/prctl.h>
#include <time.h>

static int is_held(void) {
#if PY_VERSION_HEX >= 0x030C0000
  const volatile void* const flag = &_PyRuntime.interpreters.main->ceval.gil->locked;
#else
  const volatile void* const flag = &_PyRuntime.ceval.gil.locked;
#endif
  return *(const volatile int*)flag == 1;
}

// Looks at the lock about every `period_ns`, at random moments, for so many seconds or until
// `is_over` is not 0. It sleeps in between, so that it takes no core from the threads of the
// loader. Others may read `looks` and `held` meanwhile.
__attribute__((visibility("default"))) void probe_lock(double seconds, int64_t period_ns,
                                                       volatile int64_t* looks,
                                                       volatile int64_t* held,
                                                       const volatile int64_t* is_over) {
  uint64_t state = 88172645463325252ull;
  struct timespec begin, now;
  double elapsed;
  prctl(PR_SET_TIMERSLACK, 1000ul, 0ul, 0ul, 0ul);
  clock_gettime(CLOCK_MONOTONIC, &begin);
  *looks = *held = 0;
  do {
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;  // xorshift64
    const struct timespec pause = {0, period_ns / 2 + (long)(state % (uint64_t)period_ns)};
    nanosleep(&pause, 0);
    *held += is_held();
    *looks += 1;
    clock_gettime(CLOCK_MONOTONIC, &now);
    elapsed = (double)(now.tv_sec - begin.tv_sec) + 1e-9 * (double)(now.tv_nsec - begin.tv_nsec);
  } while (!*is_over && elapsed < seconds);
}
