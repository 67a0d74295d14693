// gpupipe._kernels: the Python module. Functions create stages; run_program runs them without the
// GIL.
#include <cstring>

#include "output.h"

namespace gpupipe {

bool create_pixels_type();
PyObject* program(PyObject*, PyObject* arguments);
PyObject* run_program(PyObject*, PyObject* arguments);
PyObject* run_stage(PyObject*, PyObject* arguments);
PyObject* blend_stage(PyObject*, PyObject* arguments);
PyObject* call_stage(PyObject*, PyObject* arguments);
PyObject* color_stage(PyObject*, PyObject* arguments);
PyObject* crop_stage(PyObject*, PyObject* arguments);
PyObject* deliver_stage(PyObject*, PyObject* arguments);
PyObject* erase_stage(PyObject*, PyObject* arguments);
PyObject* transpose_stage(PyObject*, PyObject* arguments);
PyObject* first_stage(PyObject*, PyObject* arguments);
PyObject* fork_stage(PyObject*, PyObject* arguments);
PyObject* nearest_stage(PyObject*, PyObject* arguments);
PyObject* pad_stage(PyObject*, PyObject* arguments);
PyObject* resize_stage(PyObject*, PyObject* arguments);
PyObject* switch_stage(PyObject*, PyObject* arguments);
PyObject* window_stage(PyObject*, PyObject* arguments);
PyObject* warp_stage(PyObject*, PyObject* arguments);
PyObject* convert_planes(PyObject*, PyObject* arguments);
PyObject* read_files(PyObject*, PyObject* parts);
PyObject* read_files_and_crcs(PyObject*, PyObject* parts);
PyObject* read_plain_sizes(PyObject*, PyObject* arguments);
PyObject* open_files(PyObject*, PyObject* arguments);
PyObject* create_run(PyObject*, PyObject* arguments);
PyObject* stat_files(PyObject*, PyObject* paths);
PyObject* normal_field(PyObject*, PyObject* arguments);
PyObject* uniform_field(PyObject*, PyObject* arguments);
PyObject* noise_stage(PyObject*, PyObject* arguments);
PyObject* noise_window_stage(PyObject*, PyObject* arguments);
PyObject* displacement(PyObject*, PyObject* arguments);
PyObject* draw_uniforms(PyObject*, PyObject* arguments);
PyObject* window_factors(PyObject*, PyObject* arguments);
PyObject* choose_windows(PyObject*, PyObject* arguments);
PyObject* limit_windows(PyObject*, PyObject* arguments);
PyObject* policy_moves(PyObject*, PyObject* arguments);
PyObject* warp_matrices(PyObject*, PyObject* arguments);
PyObject* elastic_stage(PyObject*, PyObject* arguments);
bool create_file_types();
bool create_files_type();
bool create_run_type();
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
  const char* wanted = PyUnicode_AsUTF8AndSize(name, nullptr);
  if (!wanted) return nullptr;
  for (const Variant* variant : kVariants) {
    if (std::strcmp(variant->name, wanted) != 0 || !variant->is_supported()) continue;
    g_variant = variant;
    Py_RETURN_NONE;
  }
  return PyErr_Format(PyExc_ValueError, "this machine has no variant '%s'", wanted);
}

PyMethodDef kMethods[] = {
    {"program", program, METH_VARARGS,
     "program(stages) -> stage\n\n"
     "Return the stage that runs the stages of a tuple one after the other."},
    {"run_program", run_program, METH_VARARGS,
     "run_program(stage, rows, contents) -> list\n\n"
     "Run a stage on the contents of several rows of a batch, without the GIL. A content is a "
     "buffer: the bytes of a file, or pixels (H, W, C) of uint8 or float32.\n"
     "Return the positions in `rows` of the samples that the stage cannot do."},
    {"create_run", create_run, METH_VARARGS,
     "create_run(stage, contents, files, positions) -> Run\n\n"
     "Return the run of a stage on all rows of a batch. A content is a buffer, as for run_program, "
     "or None for file positions[row] of `files`. Without positions, it is file `row`."},
    {"run_stage", run_stage, METH_VARARGS,
     "run_stage(stage, row, content)\n\n"
     "Run a stage on the content of one row, without the GIL. Return the pixels, a buffer "
     "(H, W, C); None if the stage cannot do this sample."},
    {"blend_stage", blend_stage, METH_VARARGS,
     "blend_stage(weights, stages) -> stage\n\n"
     "Sum the results of the stages of a tuple on an image of uint8, each times its weight, "
     "float64 (B, stages)."},
    {"call_stage", call_stage, METH_VARARGS,
     "call_stage(processes, seeds, field, output) -> stage\n\n"
     "Call a function of the user's in one of several processes. `processes` is what "
     "FunctionPool.open_native() returns, `seeds` int64 (B,), and `field` the name of the field "
     "as JSON. `output` is (channels, bytes of a value, height, width) of what it returns; a "
     "height of 0 stands for the size of the image."},
    {"crop_stage", crop_stage, METH_VARARGS,
     "crop_stage(windows) -> stage\n\n"
     "Cut out [top, left, height, width], int64 (B, 4)."},
    {"color_stage", color_stage, METH_VARARGS,
     "color_stage(changes, tables) -> stage\n\n"
     "Change the colours of images of 1 or 3 channels. A change of the tuple is (functions, index, "
     "values, rows).\nA function is (number of Color in native/color.h, min, max, is_whole). With "
     "an `index`, (B,), each sample has the function that it names, with one value, clipped: "
     "`values` is the array (B,) of each function, or one for all. Without, there is one function, "
     "and its values are those of all arrays (B,) or (B, n) of `values`.\n`rows`, bool (B,), are "
     "the samples to change; None for all. `tables`, uint8 (m, 256), are those that a change may "
     "name."},
    {"window_stage", window_stage, METH_VARARGS,
     "window_stage(windows, fill, flips, output) -> stage\n\n"
     "Cut out [top, left, height, width], int64 (B, 4), of which parts may be outside of the "
     "image, flip them, and write them to the output. `fill` is the bytes of a pixel there. `flips` "
     "and `output` are as for deliver_stage."},
    {"pad_stage", pad_stage, METH_VARARGS,
     "pad_stage(borders, mode, flips, output) -> stage\n\n"
     "Add [top, left, bottom, right], int64 (B, 4), pixels, flip the images, and write them to the "
     "output. The mode is \"edge\", \"reflect\" or \"symmetric\". `flips` and `output` are as for "
     "deliver_stage."},
    {"deliver_stage", deliver_stage, METH_VARARGS,
     "deliver_stage(flips, output) -> stage\n\n"
     "Flip and convert images of 1 to 4 channels, of uint8 or float32. `flips` is [horizontal, "
     "vertical], uint8 (B, 2), or None.\n"
     "`output` is (batch, table, factors), for a batch (B, C, H, W) or a list of its parts; or "
     "(batch, table, factors, windows, value), to set windows, int64 (B, 4), to a value (C,) "
     "afterwards; or None, to return the image. Floats need no table; with factors they become "
     "(value - mean) / std."},
    {"erase_stage", erase_stage, METH_VARARGS,
     "erase_stage(windows, value) -> stage\n\n"
     "Set [top, left, height, width], int64 (B, 4), inside each image to a value: the bytes of a "
     "pixel. A window without pixels changes nothing."},
    {"first_stage", first_stage, METH_VARARGS,
     "first_stage(stages) -> stage\n\n"
     "Run the first stage of a tuple that can do the sample, such as the decoder of its format."},
    {"fork_stage", fork_stage, METH_VARARGS,
     "fork_stage(branches) -> stage\n\n"
     "Run each branch of a tuple, (stage, views), on the same image. The stage has a row for each "
     "view and sample: row n * B + r is view n of sample r."},
    {"resize_stage", resize_stage, METH_VARARGS,
     "resize_stage(sizes, windows, flips, is_cubic, antialias, output) -> stage\n\n"
     "Resize to `sizes`, int64 (B, 2), cut out `windows`, int64 (B, 4), and flip them. Without "
     "windows, which are then None, keep all. For `flips` and `output` see deliver_stage."},
    {"nearest_stage", nearest_stage, METH_VARARGS,
     "nearest_stage(sizes, windows, fill, flips, output) -> stage\n\n"
     "Resize to `sizes`, int64 (B, 2), with the nearest pixels, cut out `windows`, int64 (B, 4), of "
     "which parts may be outside, and flip them. `fill` is the bytes of a pixel there. Without "
     "windows, which are then None, keep all. For `flips` and `output` see deliver_stage."},
    {"switch_stage", switch_stage, METH_VARARGS,
     "switch_stage(index, stages) -> stage\n\n"
     "Run the stage of each sample's index, int64 (B,). A sample whose stage is None is not done."},
    {"transpose_stage", transpose_stage, METH_VARARGS,
     "transpose_stage() -> stage\n\n"
     "Swap rows and columns of images of any number of channels, of uint8 or float32."},
    {"warp_stage", warp_stage, METH_VARARGS,
     "warp_stage(matrices, sizes, is_nearest, fill, output) -> stage\n\n"
     "Warp with nearest (of uint8) or bilinear interpolation. The matrices, float64 (B, 2, 3), "
     "or (B, 3, 3) for a perspective, map indices of pixels of the output to those of the input.\n"
     "`fill` is float64 (C,), or None: then the border is not weighed a second time. For `output` "
     "see deliver_stage."},
    {"convert_planes", convert_planes, METH_VARARGS,
     "convert_planes(images, (target, table, factors))\n\n"
     "Convert images (B, 3, H, W) of uint8 to the target (B, 3, H, W)."},
    {"normal_field", normal_field, METH_VARARGS,
     "normal_field(seed, field)\n\n"
     "Fill a contiguous array of float32 with standard normal numbers."},
    {"uniform_field", uniform_field, METH_VARARGS,
     "uniform_field(seed, field)\n\n"
     "Fill a contiguous array of float32 with uniform numbers in [0, 1)."},
    {"noise_stage", noise_stage, METH_VARARGS,
     "noise_stage(seeds, scale, mean, clip) -> stage\n\n"
     "Add scale * noise + mean to an image of uint8 or float32. `seeds` is int64 (B,)."},
    {"noise_window_stage", noise_window_stage, METH_VARARGS,
     "noise_window_stage(windows, seeds, output) -> stage\n\n"
     "Set [top, left, height, width], int64 (B, 4), inside each image of float32 to the numbers "
     "that normal_field draws for (height, width, channels). `seeds` is int64 (B,). With an output, "
     "(batch, table, None) as for deliver_stage, do that in the slots that a stage before this one "
     "wrote, of float32, float16, or bfloat16, which is passed as int16. A window without pixels "
     "changes nothing."},
    {"displacement", displacement, METH_VARARGS,
     "displacement(seed, ((alpha_x, alpha_y), kernel_x, kernel_y), field)\n\n"
     "Fill a contiguous array (H, W, 2) of float32 with the displacements of an elastic "
     "transform.\nThe kernels are float32 (2, half + 1): along x and along y, from the middle on."},
    {"draw_uniforms", draw_uniforms, METH_VARARGS,
     "draw_uniforms(keys, counts, ids, repeats, output)\n\n"
     "Fill `output` with uniform numbers in [0, 1): for each stream, of uint64 `keys` and int64\n"
     "`counts`, the draws (B, count) of the samples, int64 `ids` (B,). `repeats` is int64 (B,), or "
     "None. See gpupipe/sampling/draws.py."},
    {"window_factors", window_factors, METH_VARARGS,
     "window_factors(areas, aspects, tries, is_width_first, output)\n\n"
     "Fill `output`, float64 (B, tries, 2), with the [height, width] of windows, or [width, "
     "height],\nof areas and of width / height, float64 (B, tries) each."},
    {"choose_windows", choose_windows, METH_VARARGS,
     "choose_windows(factors, tries, positions, sizes, runs, output) -> bool\n\n"
     "Fill `output`, float64 (B, 4), with the [top, left, height, width] of the first window that "
     "fits;\nof the first of all, if none does. With `runs`, int32 (B,), a window must be smaller "
     "than its\nimage, and has no pixels if none fits or the flag is 0. Return whether all samples "
     "have one\nthat fits. See gpupipe/pipeline/random_windows.py."},
    {"limit_windows", limit_windows, METH_VARARGS,
     "limit_windows(windows, sizes, output)\n\n"
     "Fill `output`, int64 (B, 4), with the parts of windows that are inside images of `sizes`, "
     "float64\n(B, 2); with the whole image, where that is none."},
    {"policy_moves", policy_moves, METH_VARARGS,
     "policy_moves(numbers, ops, values, cosines, sines, sizes, (linear, source, output))\n\n"
     "Fill the arguments of Primitives.warp for the operations of a policy that move pixels, "
     "int32\n(B,). `numbers` are those of the operations. See gpupipe/augment/policy_ops.py."},
    {"warp_matrices", warp_matrices, METH_VARARGS,
     "warp_matrices(linear, source, output, matrices)\n\n"
     "Fill `matrices`, float64 (B, 2, 3), with the maps of indices of pixels for the arguments of\n"
     "Primitives.warp, with a row for each sample."},
    {"elastic_stage", elastic_stage, METH_VARARGS,
     "elastic_stage(seeds, ((alpha_x, alpha_y), kernel_x, kernel_y), is_bilinear, fill) -> stage\n"
     "\n"
     "Move the pixels of an image of uint8 or float32. `seeds` is int64 (B,), and `fill` four\n"
     "numbers, of which an image takes one a channel."},
    {"read_files", read_files, METH_O,
     "read_files(parts) -> list\n\n"
     "Read parts of files: tuples (path, offset, length), where a length of None means the whole "
     "file.\nFor each, return its bytes as a buffer, fewer if the file ends before, or the number "
     "of an error."},
    {"read_files_and_crcs", read_files_and_crcs, METH_O,
     "read_files_and_crcs(parts) -> list\n\n"
     "Read parts of files as read_files does. For each, return a tuple of its bytes and their "
     "CRC-32, or the number of an error."},
    {"read_plain_sizes", read_plain_sizes, METH_VARARGS,
     "read_plain_sizes(files, formats) -> bytes\n\n"
     "Return int64 [height, width] of each plain image of the `formats`: 1 for JPEGs of one scan\n"
     "without EXIF, 2 for PNGs that gpupipe._png decodes, 3 for both. [0, 0] of all others."},
    {"open_files", open_files, METH_VARARGS,
     "open_files(folder, names, offsets, rows) -> Files\n\n"
     "Return whole files, none of which is read yet. `folder` is bytes, and file i has the name "
     "names[offsets[i] : offsets[i + 1]], of uint8, where `offsets` and `rows` are int64."},
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
  if (!create_file_types() || !create_files_type() || !create_pixels_type() || !create_run_type())
    return -1;
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
#ifdef Py_mod_gil  // the stable ABI of 3.11 has none
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
