// The function `jpeg_stage` of the module gpupipe._jpeg.
#include "jpeg.h"
#include "stage.h"

namespace gpupipe {
namespace {

// Encodes each image with the quality of its row, and decodes it again.
class JpegStage : public Stage {
 public:
  bool read(PyObject* arguments) override {
    PyObject* qualities;
    if (!PyArg_ParseTuple(arguments, "O", &qualities) ||
        !qualities_.open(qualities, "qualities", 1) || !add_rows(qualities_.rows()))
      return false;
    for (Py_ssize_t row = 0; row < qualities_.rows(); ++row)
      if (*qualities_[row] < 1 || *qualities_[row] > 100)
        return refuse("a quality is not 1 to 100");
    return true;
  }

  bool run(int row, Image* image, Arena& arena) const override {
    const int channels = image->channels;
    if (image->item_size != 1 || (channels != 1 && channels != 3)) return false;
    const auto to_target = [](const Image& part) {
      return JpegTarget{part.pixels, part.stride, part.height, part.width, part.channels};
    };
    const Image decoded =
        image->is_writable ? *image : take_image(arena, image->height, image->width, channels);
    const Arena::Mark mark = arena.mark();
    const size_t max_size = find_max_jpeg_size(image->height, image->width, channels);
    uint8_t* const data = arena.take(max_size);
    const size_t size = encode_jpeg(to_target(*image), int(*qualities_[row]), data, max_size);
    const JpegWindow whole = {0, 0, image->height, image->width};
    const bool is_done =
        size > 0 && decode_jpeg_window(data, size, whole, to_target(decoded));
    arena.release(mark);
    *image = decoded;
    return is_done;
  }

 private:
  RowValues<int64_t> qualities_;
};

}  // namespace

PyObject* jpeg_stage(PyObject* module, PyObject* arguments) {
  return create_stage<JpegStage>(module, arguments);
}

}  // namespace gpupipe
