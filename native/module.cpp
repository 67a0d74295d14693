// gpupipe._kernels: the Python module. Functions prepare work, and `run` does it without the GIL.
#include <string>

#include "task.h"

namespace gpupipe {

PyObject* prepare_warp(PyObject*, PyObject* arguments);
PyObject* prepare_resize(PyObject*, PyObject* arguments);
PyObject* prepare_convert(PyObject*, PyObject* arguments);
PyObject* prepare_convert_planes(PyObject*, PyObject* arguments);
PyObject* read_files(PyObject*, PyObject* parts);
PyObject* read_files_and_crcs(PyObject*, PyObject* parts);
PyObject* stat_files(PyObject*, PyObject* paths);
PyObject* compute_crc32s(PyObject*, PyObject* buffers);

const Variant* g_variant = &kScalar;

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

bool find_works(PyObject* capsules, std::vector<Work*>* works) {
  for (Py_ssize_t n = 0; n < PyTuple_GET_SIZE(capsules); ++n) {
    void* const work = PyCapsule_GetPointer(PyTuple_GET_ITEM(capsules, n), kWorkName);
    if (!work) return false;
    works->push_back(static_cast<Work*>(work));
  }
  return true;
}

PyObject* list_flags(const std::vector<bool>& flags) {
  PyObject* const list = PyList_New(Py_ssize_t(flags.size()));
  for (size_t n = 0; list && n < flags.size(); ++n)
    PyList_SET_ITEM(list, Py_ssize_t(n), PyBool_FromLong(flags[n]));
  return list;
}

// Takes a tuple.
PyObject* run_works(PyObject* capsules) {
  try {
    std::vector<Work*> works;
    if (!find_works(capsules, &works)) return nullptr;
    std::vector<bool> are_done(works.size());
    bool has_memory = true;
    Py_BEGIN_ALLOW_THREADS
    try {
      for (size_t n = 0; n < works.size(); ++n) are_done[n] = works[n]->run(works[n]);
    } catch (const std::bad_alloc&) {
      has_memory = false;
    }
    Py_END_ALLOW_THREADS
    return has_memory ? list_flags(are_done) : PyErr_NoMemory();
  } catch (const std::bad_alloc&) {
    return PyErr_NoMemory();
  }
}

PyObject* run(PyObject*, PyObject* works) {
  PyObject* const capsules = PySequence_Tuple(works);  // which nobody else can change
  if (!capsules) return nullptr;
  PyObject* const are_done = run_works(capsules);
  Py_DECREF(capsules);
  return are_done;
}

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
    if (variant->name != std::string(wanted) || !variant->is_supported()) continue;
    g_variant = variant;
    Py_RETURN_NONE;
  }
  return PyErr_Format(PyExc_ValueError, "this machine has no variant '%s'", wanted);
}

PyMethodDef kMethods[] = {
    {"prepare_warp", prepare_warp, METH_VARARGS,
     "prepare_warp(image, matrix, fill, target, table, numbers, before=None) -> work\n\n"
     "Warp an image (H, W, 3) of uint8 and convert it to the target (3, H, W).\n"
     "`fill` is float64 (3,), or None: then the border is not weighed a second time.\n"
     "`before` is work, such as that of gpupipe._jpeg.prepare, which is done first: if it fails, "
     "nothing more is done."},
    {"prepare_convert", prepare_convert, METH_VARARGS,
     "prepare_convert(image, flips_x, flips_y, target, table, numbers, before=None) -> work\n\n"
     "Flip an image (H, W, 3) of uint8 and convert it to the target (3, H, W)."},
    {"prepare_resize", prepare_resize, METH_VARARGS,
     "prepare_resize(image, size, corner, is_cubic, antialias, flips_x, flips_y, target, table,"
     " numbers, before=None) -> work\n\n"
     "Resize an image (H, W, 3) of uint8 to `size`, and flip and convert the window at `corner` to "
     "the target (3, H, W)."},
    {"prepare_convert_planes", prepare_convert_planes, METH_VARARGS,
     "prepare_convert_planes(image, target, table, numbers) -> work\n\n"
     "Convert an image (3, H, W) of uint8 to the target (3, H, W)."},
    {"run", run, METH_O,
     "run(works) -> list\n\n"
     "Do work that functions have prepared, in order and without the GIL. For each, return whether "
     "it was done: it is not if the work before it fails."},
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
     "For each path, return the file's size in bytes and the time of its last change in ns, or None "
     "if it cannot be seen."},
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
  for (const Variant* variant : kVariants) {
    if (!variant->is_supported()) continue;
    g_variant = variant;
    break;
  }
  return PyModule_AddIntConstant(module, "MOST_SIDE", kMostSide);
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
