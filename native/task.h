// What the two extensions share: tasks, which Python passes from one to the other in capsules.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <memory>
#include <new>

namespace gpupipe {

// Counts the changes of Task and of what Python calls. Raise it with _ABI in
// gpupipe/runtime/installation.py, which uses no extension with another number.
constexpr int kAbi = 1;

constexpr char kTaskName[] = "gpupipe.task";

// What a function `prepare` of Python makes of its arguments, to be run later and without the GIL.
class Task {
 public:
  Task() = default;
  virtual ~Task() = default;
  Task(const Task&) = delete;
  Task& operator=(const Task&) = delete;

  // Reads the arguments. Returns false, with an exception of Python set, if one is wrong.
  virtual bool read(PyObject* arguments) = 0;

  // Returns whether it was done. Does not touch Python. May throw.
  virtual bool run() = 0;

  // Whether it runs another task first.
  virtual bool has_before() const { return false; }
};

// Returns the task in a capsule; null, with an exception of Python set, if the object is none.
inline Task* get_task(PyObject* capsule) {
  return static_cast<Task*>(PyCapsule_GetPointer(capsule, kTaskName));
}

// The function of a module that prepares a kind of task. It returns a capsule.
template <typename Kind>
PyObject* prepare(PyObject*, PyObject* arguments) {
  std::unique_ptr<Task> task(new (std::nothrow) Kind);
  if (!task) return PyErr_NoMemory();
  if (!task->read(arguments)) return nullptr;
  PyObject* const capsule = PyCapsule_New(task.get(), kTaskName,
                                          [](PyObject* object) { delete get_task(object); });
  if (capsule) task.release();
  return capsule;
}

}  // namespace gpupipe
