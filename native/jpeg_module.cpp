// gpupipe._jpeg: the Python module. Arguments are buffers; the decoder runs without the GIL.
#include "jpeg.h"
#include "stage.h"

namespace gpupipe {

PyObject* jpeg_stage(PyObject*, PyObject* qualities);

namespace {

constexpr Py_ssize_t kMaxJpegSide = 65535;  // of a JPEG, whose header has 16 bits for it

bool read_target(const Buffer& buffer, JpegTarget* target) {
  if (buffer.axes() != 3 || buffer.item_size() != 1 || (buffer.side(2) != 1 && buffer.side(2) != 3))
    return refuse("the target is not (H, W, 1) or (H, W, 3) of uint8");
  const Py_ssize_t height = buffer.side(0), width = buffer.side(1), channels = buffer.side(2);
  if (height < 1 || width < 1 || height > kMaxJpegSide || width > kMaxJpegSide)
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

PyObject* decode(PyObject*, PyObject* arguments) {
  PyObject *data_object, *target_object;
  JpegWindow window;
  JpegTarget target;
  Buffer data, pixels;
  bool is_decoded = false;
  if (!PyArg_ParseTuple(arguments, "OOiiii", &data_object, &target_object, &window.top,
                        &window.left, &window.height, &window.width) ||
      !data.open(data_object, PyBUF_SIMPLE) ||
      !pixels.open(target_object, PyBUF_WRITABLE | PyBUF_STRIDES) ||
      !read_target(pixels, &target) || !check_window(window, target) ||
      !run_without_gil([&] {
        is_decoded = decode_jpeg_window(data.bytes(), data.size(), window, target);
      }))
    return nullptr;
  return PyBool_FromLong(is_decoded);
}

// The arguments are (sizes, windows, channels). The windows may be None.
class DecodeStage : public Stage {
 public:
  bool read(PyObject* arguments) override {
    PyObject *sizes, *windows;
    if (!PyArg_ParseTuple(arguments, "OOi", &sizes, &windows, &channels_) ||
        !sizes_.open(sizes, "the sizes", 2) || !add_rows(sizes_.rows()))
      return false;
    if (channels_ != 1 && channels_ != 3) return refuse("the channels are not 1 or 3");
    has_windows_ = windows != Py_None;
    return !has_windows_ || (windows_.open(windows, "the windows") && add_rows(windows_.rows()));
  }

  bool run(int row, Image* image, Arena& arena) const override {
    const int64_t height = sizes_[row][0], width = sizes_[row][1];
    if (image->channels || height < 1 || width < 1 || height > kMaxJpegSide || width > kMaxJpegSide)
      return false;
    JpegWindow window = {0, 0, int(height), int(width)};
    if (has_windows_) {
      if (!windows_.is_inside(row, height, width)) return false;
      const int64_t* w = windows_[row];
      window = {int(w[0]), int(w[1]), int(w[2]), int(w[3])};
    }
    const Image pixels = take_image(arena, int(height), int(width), channels_);
    const JpegTarget target = {pixels.pixels, pixels.stride, pixels.height, pixels.width,
                               channels_};
    if (!decode_jpeg_window(image->pixels, size_t(image->width), window, target)) return false;
    *image = pixels;
    return true;
  }

 private:
  RowValues<int64_t> sizes_;
  RowWindows windows_;
  bool has_windows_ = false;
  int channels_ = 3;
};

const char kDecode[] =
    "decode(data, target, top, left, height, width) -> bool\n\n"
    "Decode a window of a JPEG to its place in a target for the whole image, (H, W, 1 or 3) of\n"
    "uint8. Return False if the whole image has to be decoded; the target may have changed then.";

const char kDecodeStage[] =
    "decode_stage(sizes, windows, channels) -> stage\n\n"
    "Decode windows, int64 (B, 4), of JPEGs of the sizes, int64 (B, 2), to images of 1 or 3\n"
    "channels. Without windows, which is None, decode whole images. The result has the size of\n"
    "the whole image; its pixels outside of the window hold no particular values.";

PyMethodDef kMethods[] = {
    {"decode_stage", create_stage<DecodeStage>, METH_VARARGS, kDecodeStage},
    {"decode", decode, METH_VARARGS, kDecode},
    {"jpeg_stage", jpeg_stage, METH_VARARGS,
     "jpeg_stage(qualities) -> stage\n\n"
     "Encode an image of uint8, gray or RGB, as a JPEG with 4:2:0 chroma, and decode it again.\n"
     "`qualities` is int64 (B,), each 1 to 100."},
    {nullptr, nullptr, 0, nullptr},
};

int initialize(PyObject* module) { return PyModule_AddIntConstant(module, "ABI", kAbi); }

PyModuleDef_Slot kSlots[] = {
    {Py_mod_exec, reinterpret_cast<void*>(initialize)},
#ifdef Py_mod_gil  // the stable ABI of 3.11 has none
    {Py_mod_gil, Py_MOD_GIL_NOT_USED},
#endif
    {0, nullptr},
};

PyModuleDef kModule = {PyModuleDef_HEAD_INIT,
                       "_jpeg",
                       "Decodes and encodes JPEGs with libjpeg-turbo.",
                       0,
                       kMethods,
                       kSlots,
                       nullptr,
                       nullptr,
                       nullptr};

}  // namespace
}  // namespace gpupipe

PyMODINIT_FUNC PyInit__jpeg() { return PyModuleDef_Init(&gpupipe::kModule); }
