// The functions `run_program` and `run_stage` of the module.
#include "content.h"
#include "program.h"

namespace gpupipe {
namespace {

// The memory of the thread for all programs that it runs.
Arena& find_arena() {
  thread_local Arena arena;
  return arena;
}

bool check_row(const Stage& stage, Py_ssize_t row) {
  if (row >= 0 && row <= INT32_MAX && (stage.rows() == Stage::kAnyRows || row < stage.rows()))
    return true;
  PyErr_Format(PyExc_IndexError, "there is no row %zd", row);
  return false;
}

// The result of `run_stage`, as a buffer (H, W, C).
struct Pixels {
  PyObject_HEAD
  uint8_t* data;
  Py_ssize_t shape[3], strides[3];
  int item_size;
};

int get_pixels(PyObject* self, Py_buffer* view, int flags) {
  auto* const pixels = reinterpret_cast<Pixels*>(self);
  const Py_ssize_t size = pixels->shape[0] * pixels->strides[0];
  if (PyBuffer_FillInfo(view, self, pixels->data, size, 0, flags) != 0) return -1;
  static char bytes[] = "B", floats[] = "f";
  view->itemsize = pixels->item_size;
  if (flags & PyBUF_FORMAT) view->format = pixels->item_size == 1 ? bytes : floats;
  if ((flags & PyBUF_ND) == PyBUF_ND) view->ndim = 3, view->shape = pixels->shape;
  if ((flags & PyBUF_STRIDES) == PyBUF_STRIDES) view->strides = pixels->strides;
  return 0;
}

void free_pixels(PyObject* self) {
  PyTypeObject* const type = Py_TYPE(self);
  std::free(reinterpret_cast<Pixels*>(self)->data);
  PyObject_Free(self);
  Py_DECREF(type);
}

PyTypeObject* g_pixels = nullptr;  // set once, when the module is imported

PyObject* copy_pixels(const Image& image) {
  auto* const pixels = PyObject_New(Pixels, g_pixels);
  if (!pixels) return nullptr;
  const Reference owner(reinterpret_cast<PyObject*>(pixels));
  pixels->data = static_cast<uint8_t*>(std::malloc(size_t(image.height * image.row_size())));
  if (!pixels->data) return PyErr_NoMemory();
  pixels->item_size = image.item_size;
  pixels->shape[0] = image.height, pixels->shape[1] = image.width;
  pixels->shape[2] = image.channels;
  pixels->strides[0] = image.row_size(), pixels->strides[1] = image.pixel_size();
  pixels->strides[2] = image.item_size;
  const bool is_copied = run_without_gil([&] {
    for (int64_t n = 0; n < image.height; ++n)
      std::memcpy(pixels->data + n * image.row_size(), image.row(n), size_t(image.row_size()));
  });
  if (!is_copied) return nullptr;
  Py_INCREF(owner.get());
  return owner.get();
}

}  // namespace

bool run_row(const Stage& stage, int row, const Content& content, Image* image) {
  if (!content.is_image() || !stage.can_run(row)) return false;
  Arena& arena = find_arena();
  arena.reset();
  *image = content.image();
  if (!stage.takes_planes()) interleave(image, arena);
  return stage.run(row, image, arena);
}

bool create_pixels_type() {
  static PyType_Slot slots[] = {
      {Py_bf_getbuffer, reinterpret_cast<void*>(get_pixels)},
      {Py_tp_dealloc, reinterpret_cast<void*>(free_pixels)},
      {Py_tp_doc, const_cast<char*>("The pixels of an image, as a buffer.")},
      {0, nullptr},
  };
  static PyType_Spec spec = {"gpupipe._kernels.Pixels", sizeof(Pixels), 0,
                             Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, slots};
  if (!g_pixels) g_pixels = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&spec));
  return g_pixels != nullptr;
}

PyObject* run_program(PyObject*, PyObject* arguments) {
  PyObject *capsule, *row_object, *content_object;
  if (!PyArg_ParseTuple(arguments, "OOO", &capsule, &row_object, &content_object)) return nullptr;
  const Stage* const stage = get_stage(capsule);
  if (!stage) return nullptr;
  // Reading a buffer may run code of Python, which could change a list.
  const Reference rows(PySequence_Tuple(row_object));
  const Reference objects(rows ? PySequence_Tuple(content_object) : nullptr);
  if (!objects) return nullptr;
  const Py_ssize_t count = PyTuple_Size(rows.get());
  if (count != PyTuple_Size(objects.get())) {
    refuse("there is not one content for each row");
    return nullptr;
  }
  const std::unique_ptr<Content[]> contents(new (std::nothrow) Content[size_t(count)]);
  const std::unique_ptr<int[]> each(new (std::nothrow) int[size_t(count)]);
  const std::unique_ptr<bool[]> are_done(new (std::nothrow) bool[size_t(count)]());
  if (!contents || !each || !are_done) return PyErr_NoMemory();
  for (Py_ssize_t n = 0; n < count; ++n) {
    const Py_ssize_t row = PyLong_AsSsize_t(PyTuple_GetItem(rows.get(), n));
    if ((row == -1 && PyErr_Occurred()) || !check_row(*stage, row) ||
        !contents[size_t(n)].read(PyTuple_GetItem(objects.get(), n)))
      return nullptr;
    each[size_t(n)] = int(row);
  }
  const auto run_all = [&] {
    Image image;
    for (size_t n = 0; n < size_t(count); ++n)
      are_done[n] = run_row(*stage, each[n], contents[n], &image);
  };
  if (!run_without_gil(run_all)) return nullptr;
  Reference failed(PyList_New(0));
  for (Py_ssize_t n = 0; failed && n < count; ++n) {
    if (are_done[size_t(n)]) continue;
    const Reference position(PyLong_FromSsize_t(n));
    if (!position || PyList_Append(failed.get(), position.get()) != 0) return nullptr;
  }
  return failed.release();
}

PyObject* run_stage(PyObject*, PyObject* arguments) {
  PyObject *capsule, *object;
  Py_ssize_t row;
  Content content;
  if (!PyArg_ParseTuple(arguments, "OnO", &capsule, &row, &object)) return nullptr;
  const Stage* const stage = get_stage(capsule);
  if (!stage || !check_row(*stage, row) || !content.read(object)) return nullptr;
  bool is_done = false;
  Image image;
  const auto run_one = [&] {
    is_done = run_row(*stage, int(row), content, &image);
    if (!is_done) return;
    make_changes(&image, find_arena());
    interleave(&image, find_arena());
  };
  if (!run_without_gil(run_one)) return nullptr;
  if (!is_done) Py_RETURN_NONE;
  return copy_pixels(image);
}

}  // namespace gpupipe
