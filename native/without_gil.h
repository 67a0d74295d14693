// Runs C++ without the GIL, and turns what it throws into exceptions of Python.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <exception>
#include <memory>
#include <new>

namespace gpupipe {

struct DecRef {
  void operator()(PyObject* object) const { Py_DECREF(object); }
};
using Reference = std::unique_ptr<PyObject, DecRef>;

inline void set_python_error(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::bad_alloc&) {
    PyErr_NoMemory();
  } catch (const std::exception& e) {
    PyErr_SetString(PyExc_RuntimeError, e.what());
  } catch (...) {
    PyErr_SetString(PyExc_RuntimeError, "C++ threw something that is no std::exception");
  }
}

// Returns what a function returns, an object of Python; null, with an exception set, if it throws.
template <typename Function>
PyObject* catch_errors(const Function& function) {
  try {
    return function();
  } catch (...) {
    set_python_error(std::current_exception());
    return nullptr;
  }
}

// Returns false, with an exception of Python set, if the function throws.
template <typename Function>
bool run_without_gil(const Function& function) {
  std::exception_ptr error;
  Py_BEGIN_ALLOW_THREADS
  try {
    function();
  } catch (...) {
    error = std::current_exception();
  }
  Py_END_ALLOW_THREADS
  if (error) set_python_error(error);
  return !error;
}

// A function of a module: parses each item of a sequence, runs all of them without the GIL, and
// returns a list of what each one's take() returns.
template <typename Item>
PyObject* run_each(PyObject*, PyObject* sequence) {
  // Parsing may run code of Python, which could change a list.
  const Reference objects(PySequence_Tuple(sequence));
  if (!objects) return nullptr;
  const Py_ssize_t count = PyTuple_Size(objects.get());
  const std::unique_ptr<Item[]> items(new (std::nothrow) Item[size_t(count)]);
  if (!items) return PyErr_NoMemory();
  const auto parse_all = [&] {
    Py_ssize_t n = 0;
    while (n < count && items[size_t(n)].parse(PyTuple_GetItem(objects.get(), n))) ++n;
    return n < count ? nullptr : objects.get();
  };
  if (!catch_errors(parse_all)) return nullptr;
  const auto run_all = [&] {
    for (Py_ssize_t n = 0; n < count; ++n) items[size_t(n)].run();
  };
  if (!run_without_gil(run_all)) return nullptr;
  Reference results(PyList_New(count));
  for (Py_ssize_t n = 0; results && n < count; ++n) {
    PyObject* const result = items[size_t(n)].take();
    if (!result) return nullptr;
    PyList_SetItem(results.get(), n, result);
  }
  return results.release();
}

}  // namespace gpupipe
