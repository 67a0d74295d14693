// gpupipe._jpeg: the Python module. Arguments are buffers; the decoder runs without the GIL.
#include "buffer.h"
#include "jpeg.h"
#include "task.h"
#include "without_gil.h"

namespace gpupipe {
namespace {

constexpr Py_ssize_t kMaxSide = 65535;  // of a JPEG, whose header has 16 bits for it

bool read_target(const Buffer& buffer, JpegTarget* target) {
  if (buffer.axes() != 3 || buffer.item_size() != 1 || (buffer.side(2) != 1 && buffer.side(2) != 3))
    return refuse("the target is not (H, W, 1) or (H, W, 3) of uint8");
  const Py_ssize_t height = buffer.side(0), width = buffer.side(1), channels = buffer.side(2);
  if (height < 1 || width < 1 || height > kMaxSide || width > kMaxSide)
    return refuse("the target is empty or too large");
  if ((buffer.stride(2) != 1 && channels > 1) || (buffer.stride(1) != channels && width > 1) ||
      (buffer.stride(0) < width * channels && height > 1))
    return refuse("the rows of the target are not packed");
  *target = {buffer.bytes(), buffer.stride(0), int(height), int(width), int(channels)};
  return true;
}

bool check_window(const JpegWindow& w, const JpegTarget& target) {
  if (w.top < 0 || w.left < 0 || w.height < 1 || w.width < 1 || w.top > target.height - w.height ||
      w.left > target.width - w.width)
    return refuse("the window is empty or not inside the target");
  return true;
}

class DecodeTask : public Task {
 public:
  bool read(PyObject* arguments) override {
    PyObject *data, *target;
    return PyArg_ParseTuple(arguments, "OOiiii", &data, &target, &window_.top, &window_.left,
                            &window_.height, &window_.width) &&
           data_.open(data, PyBUF_SIMPLE) &&
           pixels_.open(target, PyBUF_WRITABLE | PyBUF_STRIDES) &&
           read_target(pixels_, &target_) && check_window(window_, target_);
  }

  bool run() override {
    return decode_jpeg_window(data_.bytes(), data_.size(), window_, target_);
  }

 private:
  JpegWindow window_;
  JpegTarget target_;
  Buffer data_, pixels_;
};

PyObject* decode(PyObject*, PyObject* arguments) {
  DecodeTask task;
  bool is_decoded = false;
  if (!task.read(arguments) || !run_without_gil([&] { is_decoded = task.run(); })) return nullptr;
  return PyBool_FromLong(is_decoded);
}

const char kDecode[] =
    "decode(data, target, top, left, height, width) -> bool\n\n"
    "Decode a window of a JPEG to its place in a target for the whole image, (H, W, 1 or 3) of\n"
    "uint8. Return False if the whole image has to be decoded; the target may have changed then.";

const char kPrepare[] =
    "prepare(data, target, top, left, height, width) -> task\n\n"
    "Return the task of `decode` for a function of gpupipe._kernels, which runs it first.";

PyMethodDef kMethods[] = {
    {"prepare", prepare<DecodeTask>, METH_VARARGS, kPrepare},
    {"decode", decode, METH_VARARGS, kDecode},
    {nullptr, nullptr, 0, nullptr},
};

int initialize(PyObject* module) { return PyModule_AddIntConstant(module, "ABI", kAbi); }

PyModuleDef_Slot kSlots[] = {
    {Py_mod_exec, reinterpret_cast<void*>(initialize)},
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
}  // namespace gpupipe

PyMODINIT_FUNC PyInit__jpeg() { return PyModuleDef_Init(&gpupipe::kModule); }
