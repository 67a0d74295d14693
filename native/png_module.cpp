// gpupipe._png: the Python module. Arguments are buffers; the decoder runs without the GIL.
#include "plain_png.h"
#include "stage.h"

namespace gpupipe {
namespace {

bool read_target(const Buffer& buffer, PngTarget* target) {
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

size_t find_row_size(int width) { return size_t(width) * 4; }

PyObject* decode(PyObject*, PyObject* arguments) {
  PyObject *data_object, *target_object;
  PngTarget target;
  Buffer data, pixels;
  bool is_decoded = false;
  if (!PyArg_ParseTuple(arguments, "OO", &data_object, &target_object) ||
      !data.open(data_object, PyBUF_SIMPLE) ||
      !pixels.open(target_object, PyBUF_WRITABLE | PyBUF_STRIDES) || !read_target(pixels, &target))
    return nullptr;
  const auto run = [&] {
    std::vector<uint8_t> row(find_row_size(target.width));
    is_decoded = decode_png(data.bytes(), data.size(), target, row.data());
  };
  return run_without_gil(run) ? PyBool_FromLong(is_decoded) : nullptr;
}

PyObject* is_plain(PyObject*, PyObject* object) {
  Buffer data;
  PngHeader header;
  if (!data.open(object, PyBUF_SIMPLE)) return nullptr;
  return PyBool_FromLong(read_plain_png(data.bytes(), data.size(), &header));
}

// The arguments are (sizes, channels).
class DecodeStage : public Stage {
 public:
  bool read(PyObject* arguments) override {
    PyObject* sizes;
    if (!PyArg_ParseTuple(arguments, "Oi", &sizes, &channels_) ||
        !sizes_.open(sizes, "the sizes", 2) || !add_rows(sizes_.rows()))
      return false;
    return channels_ == 1 || channels_ == 3 || refuse("the channels are not 1 or 3");
  }

  bool run(int row, Image* image, Arena& arena) const override {
    const int64_t height = sizes_[row][0], width = sizes_[row][1];
    PngHeader header;
    // Before memory is taken: the size may be anything.
    if (image->channels || !read_plain_png(image->pixels, size_t(image->width), &header) ||
        header.height != height || header.width != width)
      return false;
    const Image pixels = take_image(arena, header.height, header.width, channels_);
    const PngTarget target = {pixels.pixels, pixels.stride, pixels.height, pixels.width, channels_};
    const Arena::Mark mark = arena.mark();
    uint8_t* const line = arena.take(find_row_size(header.width));
    const bool is_decoded =
        decode_png(image->pixels, size_t(image->width), target, line);
    arena.release(mark);
    if (is_decoded) *image = pixels;
    return is_decoded;
  }

 private:
  RowValues<int64_t> sizes_;
  int channels_ = 3;
};

PyMethodDef kMethods[] = {
    {"decode_stage", create_stage<DecodeStage>, METH_VARARGS,
     "decode_stage(sizes, channels) -> stage\n\n"
     "Decode plain PNGs of the sizes, int64 (B, 2), to images of 1 or 3 channels."},
    {"decode", decode, METH_VARARGS,
     "decode(data, target) -> bool\n\n"
     "Decode a plain PNG to a target, (H, W, 1 or 3) of uint8. Return False if another decoder has\n"
     "to decode it; the target may have changed then."},
    {"is_plain", is_plain, METH_O,
     "is_plain(data) -> bool\n\n"
     "Return whether a file has the header and the chunks of a PNG that `decode` may take."},
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

PyModuleDef kModule = {
    PyModuleDef_HEAD_INIT, "_png", "Decodes PNGs with libpng.", 0, kMethods, kSlots, nullptr,
    nullptr,               nullptr};

}  // namespace
}  // namespace gpupipe

PyMODINIT_FUNC PyInit__png() { return PyModuleDef_Init(&gpupipe::kModule); }
