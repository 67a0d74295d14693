// gpupipe._kernels: the Python module. Functions prepare tasks; `run` runs them without the GIL.
#include <cstring>

#include "kernel_task.h"

namespace gpupipe {

PyObject* prepare_warp(PyObject*, PyObject* arguments);
PyObject* prepare_resize(PyObject*, PyObject* arguments);
PyObject* prepare_convert(PyObject*, PyObject* arguments);
PyObject* prepare_convert_planes(PyObject*, PyObject* arguments);
PyObject* read_files(PyObject*, PyObject* parts);
PyObject* read_files_and_crcs(PyObject*, PyObject* parts);
PyObject* stat_files(PyObject*, PyObject* paths);
bool create_file_types();
PyObject* compute_crc32s(PyObject*, PyObject* buffers);

std::atomic<const Variant*> g_variant = &kScalar;

namespace {

const Variant* const kVariants[] = {
#if defined(__x86_64__)
    &kAvx512,
    &kAvx2,
#endif
#if defined(__aarch64__)
    &kNeon,
#endif
    &kScalar,
};

// A task that `run` is given.
class Run {
 public:
  bool parse(PyObject* capsule) { return (task_ = get_task(capsule)) != nullptr; }
  void run() { is_done_ = task_->run(); }
  PyObject* take() const { return PyBool_FromLong(is_done_); }

 private:
  Task* task_ = nullptr;
  bool is_done_ = false;
};

PyObject* variants(PyObject*, PyObject*) {
  PyObject* names = PyList_New(0);
  for (const Variant* variant : kVariants) {
    if (!names || !variant->is_supported()) continue;
    PyObject* name = PyUnicode_FromString(variant->name);
    if (!name || PyList_Append(names, name) != 0) Py_CLEAR(names);
    Py_XDECREF(name);
  }
  return names;
}

PyObject* select(PyObject*, PyObject* name) {
  const char* wanted = PyUnicode_AsUTF8(name);
  if (!wanted) return nullptr;
  for (const Variant* variant : kVariants) {
    if (std::strcmp(variant->name, wanted) != 0 || !variant->is_supported()) continue;
    g_variant = variant;
    Py_RETURN_NONE;
  }
  return PyErr_Format(PyExc_ValueError, "this machine has no variant '%s'", wanted);
}

PyMethodDef kMethods[] = {
    {"prepare_warp", prepare_warp, METH_VARARGS,
     "prepare_warp(image, (matrix, fill), (target, table, factors), before=None) -> task\n\n"
     "Warp an image (H, W, 3) of uint8 and convert it to the target (3, H, W).\n"
     "`fill` is float64 (3,), or None: then the border is not weighed a second time.\n"
     "`before` is a task, such as that of gpupipe._jpeg.prepare, which is run first: if it fails, "
     "nothing more is done. It must not have a task before it."},
    {"prepare_convert", prepare_convert, METH_VARARGS,
     "prepare_convert(image, (flips_x, flips_y), (target, table, factors), before=None) -> task\n"
     "\n"
     "Flip an image (H, W, 3) of uint8 and convert it to the target (3, H, W)."},
    {"prepare_resize", prepare_resize, METH_VARARGS,
     "prepare_resize(image, (height, width, top, left, is_cubic, antialias, flips_x, flips_y), "
     "(target, table, factors), before=None) -> task\n\n"
     "Resize an image (H, W, 3) of uint8 to (height, width), and flip and convert the window at "
     "(top, left) to the target (3, H, W)."},
    {"prepare_convert_planes", prepare_convert_planes, METH_VARARGS,
     "prepare_convert_planes(image, (target, table, factors)) -> task\n\n"
     "Convert an image (3, H, W) of uint8 to the target (3, H, W)."},
    {"run", run_each<Run>, METH_O,
     "run(tasks) -> list\n\n"
     "Run tasks that functions have prepared, in order and without the GIL. For each, return "
     "whether it was done: it is not if the task before it fails."},
    {"read_files", read_files, METH_O,
     "read_files(parts) -> list\n\n"
     "Read parts of files: tuples (path, offset, length), where a length of None means the whole "
     "file.\nFor each, return its bytes as a buffer, fewer if the file ends before, or the number "
     "of an error."},
    {"read_files_and_crcs", read_files_and_crcs, METH_O,
     "read_files_and_crcs(parts) -> list\n\n"
     "Read parts of files as read_files does. For each, return a tuple of its bytes and their "
     "CRC-32, or the number of an error."},
    {"stat_files", stat_files, METH_O,
     "stat_files(paths) -> list\n\n"
     "For each path, return the file's size in bytes and the time of its last change in ns, or "
     "None if it cannot be seen."},
    {"compute_crc32s", compute_crc32s, METH_O,
     "compute_crc32s(buffers) -> list\n\n"
     "Return the CRC-32 of each buffer, as zlib.crc32 does."},
    {"variants", variants, METH_NOARGS,
     "variants()\n--\n\nReturn the names of the variants that this machine can run."},
    {"select", select, METH_O,
     "select(name)\n--\n\nRun this variant from now on, in all threads."},
    {nullptr, nullptr, 0, nullptr},
};

int initialize(PyObject* module) {
  if (!create_file_types()) return -1;
  for (const Variant* variant : kVariants) {
    if (!variant->is_supported()) continue;
    g_variant = variant;
    break;
  }
  if (PyModule_AddIntConstant(module, "ABI", kAbi) != 0) return -1;
  return PyModule_AddIntConstant(module, "MAX_SIDE", kMaxSide);
}

PyModuleDef_Slot kSlots[] = {
    {Py_mod_exec, reinterpret_cast<void*>(initialize)},
#if PY_VERSION_HEX >= 0x030D0000
    {Py_mod_gil, Py_MOD_GIL_NOT_USED},
#endif
    {0, nullptr},
};

PyModuleDef kModule = {PyModuleDef_HEAD_INIT,
                       "_kernels",
                       "Kernels in C++ of the engine cpu.",
                       0,
                       kMethods,
                       kSlots,
                       nullptr,
                       nullptr,
                       nullptr};

}  // namespace
}  // namespace gpupipe

PyMODINIT_FUNC PyInit__kernels() { return PyModuleDef_Init(&gpupipe::kModule); }
