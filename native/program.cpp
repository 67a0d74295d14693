// Programs, and the stages that contain others: the functions `program`, `first_stage`,
// `switch_stage`, `blend_stage`, `fork_stage` and `crop_stage` of the module.
#include "program.h"

#include <vector>

#include "channels.h"
#include "color.h"

namespace gpupipe {
namespace {

bool can_all_run(const std::vector<InnerStage>& parts, int row) {
  for (const InnerStage& part : parts)
    if (!part->can_run(row)) return false;
  return true;
}

// Is made of stages.
class Composite : public Stage {
 public:
  bool read(PyObject* arguments) override {
    PyObject* stages;
    return PyArg_ParseTuple(arguments, "O!", &PyTuple_Type, &stages) &&
           read_parts(stages, &parts_);
  }

 protected:
  std::vector<InnerStage> parts_;
};

// Runs stages one after the other.
class Program : public Composite {
 public:
  bool run(int row, Image* image, Arena& arena) const override {
    for (const InnerStage& part : parts_) {
      if (!part->takes_changes()) make_changes(image, arena);
      if (!part->takes_planes()) interleave(image, arena);
      if (!part->run(row, image, arena)) return false;
    }
    return true;
  }

  bool can_run(int row) const override { return can_all_run(parts_, row); }

  bool takes_planes() const override { return true; }
};

// Runs the first of several stages that can do the sample.
class FirstStage : public Composite {
 public:
  bool run(int row, Image* image, Arena& arena) const override {
    const Arena::Mark mark = arena.mark();
    for (const InnerStage& part : parts_) {
      Image own = *image;
      own.is_writable = false;  // the next stage may need it
      if (part->can_run(row) && part->run(row, &own, arena)) {
        *image = own;
        return true;
      }
      arena.release(mark);
    }
    return false;
  }

  bool can_run(int row) const override {
    for (const InnerStage& part : parts_)
      if (part->can_run(row)) return true;
    return false;
  }
};

// Cuts out a window. Copies nothing.
class CropStage : public Stage {
 public:
  bool read(PyObject* arguments) override {
    PyObject* windows;
    return PyArg_ParseTuple(arguments, "O", &windows) && windows_.open(windows, "the windows") &&
           add_rows(windows_.rows());
  }

  bool takes_planes() const override { return true; }

  bool run(int row, Image* image, Arena&) const override {
    if (!image->channels || !windows_.is_inside(row, image->height, image->width)) return false;
    const int64_t* w = windows_[row];
    image->pixels = image->row(w[0]) + w[1] * image->pixel_size();
    image->height = int(w[2]), image->width = int(w[3]);
    return true;
  }

 private:
  RowWindows windows_;
};

// Runs one of several stages. A branch that is None cannot be done here.
class SwitchStage : public Stage {
 public:
  bool read(PyObject* arguments) override {
    PyObject *index, *branches;
    if (!PyArg_ParseTuple(arguments, "OO!", &index, &PyTuple_Type, &branches) ||
        !index_.open(index, "the index", 1) || !add_rows(index_.rows()) ||
        !read_parts(branches, &branches_, true))
      return false;
    for (Py_ssize_t n = 0; n < index_.rows(); ++n)
      if (*index_[n] < 0 || *index_[n] >= int64_t(branches_.size()))
        return refuse("the index names a branch that is not there");
    return true;
  }

  bool run(int row, Image* image, Arena& arena) const override {
    const InnerStage& branch = branches_[size_t(*index_[row])];
    return branch && branch->run(row, image, arena);
  }

  bool can_run(int row) const override {
    const InnerStage& branch = branches_[size_t(*index_[row])];
    return branch && branch->can_run(row);
  }

 private:
  RowValues<int64_t> index_;
  std::vector<InnerStage> branches_;
};

// Sums the results of several stages on the same image, each times its weight in the row. In
// float32 and in the order of the stages, as the reference does; fractions are dropped.
class BlendStage : public Stage {
 public:
  bool read(PyObject* arguments) override {
    PyObject *weights, *branches;
    if (!PyArg_ParseTuple(arguments, "OO!", &weights, &PyTuple_Type, &branches) ||
        !read_parts(branches, &branches_))
      return false;
    return weights_.open(weights, "the weights", Py_ssize_t(branches_.size())) &&
           add_rows(weights_.rows());
  }

  bool run(int row, Image* image, Arena& arena) const override {
    if (!image->channels || image->item_size != 1) return false;
    const Image result = take_image(arena, image->height, image->width, image->channels);
    const Arena::Mark begin = arena.mark();
    const size_t size = size_t(result.size());
    float* const sums = reinterpret_cast<float*>(arena.take(size * sizeof(float)));
    std::fill(sums, sums + size, 0.0f);
    for (size_t n = 0; n < branches_.size(); ++n) {
      const Arena::Mark mark = arena.mark();
      Image own = *image;
      own.is_writable = false;
      const bool is_done = branches_[n]->run(row, &own, arena);
      make_changes(&own, arena);
      interleave(&own, arena);
      if (!is_done || own.height != result.height ||
          own.width != result.width || own.channels != result.channels || own.item_size != 1)
        return false;
      const float weight = float(weights_[row][n]);
      for (int y = 0; y < own.height; ++y) {
        float* const to = sums + y * result.stride;
        const uint8_t* const from = own.row(y);
        for (int64_t x = 0; x < result.stride; ++x) to[x] += float(from[x]) * weight;
      }
      arena.release(mark);
    }
    for (size_t n = 0; n < size; ++n)
      result.pixels[n] = uint8_t(std::min(std::max(sums[n], 0.0f), 255.0f));
    arena.release(begin);
    *image = result;
    return true;
  }

  bool can_run(int row) const override { return can_all_run(branches_, row); }

 private:
  RowValues<double> weights_;
  std::vector<InnerStage> branches_;
};

// Runs several stages, each on the same image, such as the views of a sample. The image stays. A
// branch that makes n views has n rows for each sample: row k * rows() + r is view k of sample r.
class ForkStage : public Stage {
 public:
  bool read(PyObject* arguments) override {
    PyObject* branches;
    if (!PyArg_ParseTuple(arguments, "O!", &PyTuple_Type, &branches)) return false;
    branches_.resize(size_t(PyTuple_Size(branches)));
    for (size_t n = 0; n < branches_.size(); ++n) {
      PyObject* const pair = PyTuple_GetItem(branches, Py_ssize_t(n));
      if (!PyTuple_Check(pair)) return refuse("a branch is no tuple (stage, views)");
      PyObject* capsule;
      Branch& branch = branches_[n];
      if (!PyArg_ParseTuple(pair, "Oi", &capsule, &branch.views) || !branch.stage.read(capsule))
        return false;
      if (!add_part(*branch.stage, branch.views)) return false;
    }
    return true;
  }

  bool run(int row, Image* image, Arena& arena) const override {
    return all_of_row(row, [&](const Stage& stage, int own_row) {
      const Arena::Mark mark = arena.mark();
      Image own = *image;
      own.is_writable = false;
      if (!stage.run(own_row, &own, arena)) return false;
      arena.release(mark);
      return true;
    });
  }

  bool can_run(int row) const override {
    return all_of_row(row, [](const Stage& stage, int own_row) { return stage.can_run(own_row); });
  }

 private:
  struct Branch {
    InnerStage stage;
    int views = 1;
  };

  // Whether a function returns true for each view of a sample. Ends at the first that does not.
  template <typename Function>
  bool all_of_row(int row, const Function& function) const {
    for (const Branch& branch : branches_)
      for (int view = 0; view < branch.views; ++view)
        if (!function(*branch.stage, int(view * std::max<Py_ssize_t>(rows(), 0)) + row))
          return false;
    return true;
  }

  std::vector<Branch> branches_;
};

}  // namespace

void make_changes(Image* image, Arena& arena) {
  const Variant& variant = *g_variant;
  if (image->table) look_up_levels(image->table, *variant.color, image, arena);
  if (image->num_changes) make_float_changes(*variant.floats, image, arena);
}

void interleave(Image* image, Arena& arena) {
  if (!image->has_planes()) return;
  const Image result =
      take_image(arena, image->height, image->width, image->channels, image->item_size);
  for (int n = 0; n < image->height; ++n) {
    fetch_row(*image, n + kRowsAhead);
    const uint8_t* planes[kMaxChannels];
    for (int c = 0; c < image->channels; ++c) planes[c] = image->row(n) + c * image->plane;
    merge_row(*g_variant, planes, result.row(n), image->channels, image->item_size, image->width);
  }
  *image = result;
}

PyObject* program(PyObject* module, PyObject* arguments) {
  return create_stage<Program>(module, arguments);
}

PyObject* first_stage(PyObject* module, PyObject* arguments) {
  return create_stage<FirstStage>(module, arguments);
}

PyObject* crop_stage(PyObject* module, PyObject* arguments) {
  return create_stage<CropStage>(module, arguments);
}

PyObject* switch_stage(PyObject* module, PyObject* arguments) {
  return create_stage<SwitchStage>(module, arguments);
}

PyObject* blend_stage(PyObject* module, PyObject* arguments) {
  return create_stage<BlendStage>(module, arguments);
}

PyObject* fork_stage(PyObject* module, PyObject* arguments) {
  return create_stage<ForkStage>(module, arguments);
}

}  // namespace gpupipe
