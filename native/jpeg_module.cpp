// gpupipe._jpeg: the Python module. Arguments are buffers; the work runs without the GIL.
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <memory>
#include <new>

#include "jpeg.h"
#include "work.h"

namespace {

constexpr Py_ssize_t kMostSide = 65535;  // of a JPEG

// A buffer of Python, released at the end of its scope.
class Buffer {
 public:
  Buffer() { view.obj = nullptr; }
  ~Buffer() { PyBuffer_Release(&view); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  bool open(PyObject* object, int flags) { return PyObject_GetBuffer(object, &view, flags) == 0; }

  Py_buffer view;
};

bool refuse(const char* message) {
  PyErr_SetString(PyExc_ValueError, message);
  return false;
}

bool read_target(const Py_buffer& view, gpupipe::JpegTarget* target) {
  if (view.ndim != 3 || view.itemsize != 1 || (view.shape[2] != 1 && view.shape[2] != 3))
    return refuse("the target is not (H, W, 1) or (H, W, 3) of uint8");
  const Py_ssize_t height = view.shape[0], width = view.shape[1], channels = view.shape[2];
  if (height < 1 || width < 1 || height > kMostSide || width > kMostSide)
    return refuse("the target is empty or too large");
  if ((view.strides[2] != 1 && channels > 1) || (view.strides[1] != channels && width > 1) ||
      (view.strides[0] < width * channels && height > 1))
    return refuse("the rows of the target are not packed");
  *target = {static_cast<uint8_t*>(view.buf), view.strides[0], int(height), int(width),
             int(channels)};
  return true;
}

bool check_window(const gpupipe::JpegWindow& w, const gpupipe::JpegTarget& target) {
  if (w.top < 0 || w.left < 0 || w.height < 1 || w.width < 1 || w.top > target.height - w.height ||
      w.left > target.width - w.width)
    return refuse("the window is empty or not inside the target");
  return true;
}

// The decoding of a window.
class Decoding : public gpupipe::Work {
 public:
  Decoding() : gpupipe::Work{[](gpupipe::Work* work) {
                 return static_cast<Decoding*>(work)->decode();
               }} {}

  bool read(PyObject* arguments) {
    PyObject *data, *target;
    return PyArg_ParseTuple(arguments, "OOiiii", &data, &target, &window_.top, &window_.left,
                            &window_.height, &window_.width) &&
           data_.open(data, PyBUF_SIMPLE) &&
           pixels_.open(target, PyBUF_WRITABLE | PyBUF_STRIDES) &&
           read_target(pixels_.view, &target_) && check_window(window_, target_);
  }

  bool decode() const {
    return gpupipe::decode_jpeg_window(static_cast<const uint8_t*>(data_.view.buf),
                                       static_cast<size_t>(data_.view.len), window_, target_);
  }

 private:
  gpupipe::JpegWindow window_;
  gpupipe::JpegTarget target_;
  Buffer data_, pixels_;
};

PyObject* decode(PyObject*, PyObject* arguments) {
  Decoding decoding;
  if (!decoding.read(arguments)) return nullptr;
  bool is_decoded = false;
  Py_BEGIN_ALLOW_THREADS
  is_decoded = decoding.decode();
  Py_END_ALLOW_THREADS
  return PyBool_FromLong(is_decoded);
}

Decoding* get_decoding(PyObject* capsule) {
  void* const work = PyCapsule_GetPointer(capsule, gpupipe::kWorkName);
  return static_cast<Decoding*>(static_cast<gpupipe::Work*>(work));
}

PyObject* prepare(PyObject*, PyObject* arguments) {
  std::unique_ptr<Decoding> decoding(new (std::nothrow) Decoding);
  if (!decoding) return PyErr_NoMemory();
  if (!decoding->read(arguments)) return nullptr;
  gpupipe::Work* const work = decoding.get();
  PyObject* const capsule = PyCapsule_New(work, gpupipe::kWorkName, [](PyObject* object) {
    delete get_decoding(object);
  });
  if (capsule) decoding.release();
  return capsule;
}

const char kDecode[] =
    "decode(data, target, top, left, height, width) -> bool\n\n"
    "Decode a window of a JPEG to its place in a target for the whole image, (H, W, 1 or 3) of\n"
    "uint8. Return False if the whole image has to be decoded; the target may have changed then.";

const char kPrepare[] =
    "prepare(data, target, top, left, height, width) -> capsule\n\n"
    "Return the work of `decode` for a function of gpupipe._kernels, which does it first.";

PyMethodDef kMethods[] = {
    {"prepare", prepare, METH_VARARGS, kPrepare},
    {"decode", decode, METH_VARARGS, kDecode},
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef_Slot kSlots[] = {
#if PY_VERSION_HEX >= 0x030D0000
    {Py_mod_gil, Py_MOD_GIL_NOT_USED},
#endif
    {0, nullptr},
};

PyModuleDef kModule = {PyModuleDef_HEAD_INIT,
                       "_jpeg",
                       "Decodes windows of JPEGs with libjpeg-turbo.",
                       0,
                       kMethods,
                       kSlots,
                       nullptr,
                       nullptr,
                       nullptr};

}  // namespace

PyMODINIT_FUNC PyInit__jpeg() { return PyModuleDef_Init(&kModule); }
