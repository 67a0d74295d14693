// Stages: what a program does to each sample of a batch. Both extensions make them; Python passes
// them on in capsules.
//
//     Python, once a batch    stages = crop_stage(windows), resize_stage(...), deliver_stage(...)
//                             program = program(stages)
//     for a part of it        run_program(program, rows, contents)
//
// To add a stage, derive from Stage, and add create_stage<Kind> to the methods of a module.
#pragma once

#include "arena.h"
#include "buffer.h"
#include "without_gil.h"

#include <algorithm>
#include <vector>

namespace gpupipe {

// Counts the changes of Stage, Arena, Image, and of what Python calls. Raise it with _ABI in
// gpupipe/runtime/installation.py, which uses no extension with another number.
constexpr int kAbi = 24;

constexpr char kStageName[] = "gpupipe.stage";

// How many stages may contain each other: running and freeing them takes that much of the stack.
constexpr int kMaxDepth = 64;

class InnerStage;

// One operation, with its parameters for all samples of a batch. Immutable once it is made.
class Stage {
 public:
  static constexpr Py_ssize_t kAnyRows = -1;

  Stage() = default;
  virtual ~Stage() = default;
  Stage(const Stage&) = delete;
  Stage& operator=(const Stage&) = delete;

  // Reads the arguments. Returns false, with an exception of Python set, if one is wrong.
  virtual bool read(PyObject* arguments) = 0;

  // Replaces the image of the sample in `row` of the batch by the result. Returns false if this
  // sample cannot be done here: Python then runs it by itself, and raises its error. Does not touch
  // Python. May throw. Several threads call it at once.
  virtual bool run(int row, Image* image, Arena& arena) const = 0;

  // Whether this kind of stage can do the sample at all, before anything is done for it. False
  // spares the stages before it their work.
  virtual bool can_run(int) const { return true; }

  // Whether the stage makes the changes of colours that an image waits for. If not, they are made
  // before.
  virtual bool takes_changes() const { return false; }

  // Whether the stage takes planes. If not, they are interleaved before.
  virtual bool takes_planes() const { return false; }

  // The number of samples of the batch; kAnyRows if no parameter differs between samples.
  Py_ssize_t rows() const { return rows_; }

  // 1, or one more than the stages that it contains.
  int depth() const { return depth_; }

 protected:
  // Takes the number of rows of a parameter. Returns false, with a ValueError, if others have
  // another number.
  bool add_rows(Py_ssize_t rows) {
    if (rows == kAnyRows) return true;
    if (rows_ != kAnyRows && rows_ != rows)
      return refuse("parameters differ in the number of rows");
    rows_ = rows;
    return true;
  }

  // Takes a stage that this one contains, which has `copies` rows for each row of this one.
  bool add_part(const Stage& part, int copies = 1) {
    depth_ = std::max(depth_, part.depth() + 1);
    if (depth_ > kMaxDepth) return refuse("the stages contain each other too deeply");
    if (copies < 1 || (part.rows() != kAnyRows && part.rows() % copies))
      return refuse("a stage has not as many rows for each of its copies");
    return add_rows(part.rows() == kAnyRows ? kAnyRows : part.rows() / copies);
  }

  // Takes a tuple of stages that this one runs. Where `has_gaps`, None stands for no stage.
  bool read_parts(PyObject* tuple, std::vector<InnerStage>* parts, bool has_gaps = false);

 private:
  Py_ssize_t rows_ = kAnyRows;
  int depth_ = 1;
};

// Returns the stage in a capsule; null, with an exception of Python set, if the object is none.
inline const Stage* get_stage(PyObject* capsule) {
  return static_cast<const Stage*>(PyCapsule_GetPointer(capsule, kStageName));
}

// A stage in a capsule of Python, which it keeps alive.
class InnerStage {
 public:
  bool read(PyObject* capsule) {
    stage_ = get_stage(capsule);
    if (!stage_) return false;
    Py_INCREF(capsule);
    capsule_.reset(capsule);
    return true;
  }
  const Stage& operator*() const { return *stage_; }
  const Stage* operator->() const { return stage_; }
  explicit operator bool() const { return stage_ != nullptr; }

 private:
  Reference capsule_;
  const Stage* stage_ = nullptr;
};

inline bool Stage::read_parts(PyObject* tuple, std::vector<InnerStage>* parts, bool has_gaps) {
  parts->resize(size_t(PyTuple_Size(tuple)));
  for (size_t n = 0; n < parts->size(); ++n) {
    PyObject* const part = PyTuple_GetItem(tuple, Py_ssize_t(n));
    if (has_gaps && part == Py_None) continue;
    if (!(*parts)[n].read(part) || !add_part(*(*parts)[n])) return false;
  }
  return true;
}

// The function of a module that creates a kind of stage. It returns a capsule.
template <typename Kind>
PyObject* create_stage(PyObject*, PyObject* arguments) {
  return catch_errors([=]() -> PyObject* {
    std::unique_ptr<Stage> stage(new Kind);
    if (!stage->read(arguments)) return nullptr;
    PyObject* const capsule = PyCapsule_New(
        stage.get(), kStageName, [](PyObject* object) { delete get_stage(object); });
    if (capsule) stage.release();
    return capsule;
  });
}

// The letters of the module struct for a type of numbers, and its name.
template <typename T>
struct Dtype;
template <>
struct Dtype<uint8_t> {
  static constexpr char letters[] = "B?", name[] = "uint8";
};
template <>
struct Dtype<int32_t> {
  static constexpr char letters[] = "i", name[] = "int32";
};
template <>
struct Dtype<int64_t> {
  static constexpr char letters[] = "lq", name[] = "int64";
};
template <>
struct Dtype<uint64_t> {
  static constexpr char letters[] = "LQ", name[] = "uint64";
};
template <>
struct Dtype<float> {
  static constexpr char letters[] = "f", name[] = "float32";
};
template <>
struct Dtype<double> {
  static constexpr char letters[] = "d", name[] = "float64";
};

// A parameter of a stage: an array of T, (rows, ...), with `columns` values in each row. The buffer
// is kept, and must not change.
template <typename T>
class RowValues {
 public:
  // Returns false, with an exception set, unless the object is such an array in C order.
  bool open(PyObject* object, const char* name, Py_ssize_t columns) {
    if (!buffer_.open(object, PyBUF_STRIDES | PyBUF_FORMAT)) return false;
    rows_ = buffer_.axes() > 0 ? buffer_.side(0) : 0;
    columns_ = columns;
    Py_ssize_t count;  // an array without values may have any number of rows
    if (buffer_.axes() > 0 && !__builtin_mul_overflow(rows_, columns, &count) &&
        buffer_.is_packed(count, sizeof(T)) && buffer_.has_format(Dtype<T>::letters))
      return true;
    PyErr_Format(PyExc_ValueError, "%s is not (rows, %zd) of %s in C order", name, columns,
                 Dtype<T>::name);
    return false;
  }

  Py_ssize_t rows() const { return rows_; }
  const T* operator[](Py_ssize_t row) const {
    return reinterpret_cast<const T*>(buffer_.bytes()) + row * columns_;
  }

 private:
  Buffer buffer_;
  Py_ssize_t rows_ = 0, columns_ = 0;
};

// [top, left, height, width] of each row.
class RowWindows : public RowValues<int64_t> {
 public:
  bool open(PyObject* object, const char* name) {
    return RowValues<int64_t>::open(object, name, 4);
  }

  // Whether sums of the numbers of a row cannot overflow.
  bool is_near(Py_ssize_t row) const {
    constexpr int64_t kFar = int64_t{1} << 40;
    return std::all_of((*this)[row], (*this)[row] + 4,
                       [](int64_t n) { return -kFar < n && n < kFar; });
  }

  // Whether the window of a row is not empty and inside an image of this size.
  bool is_inside(int row, int64_t height, int64_t width) const {
    const int64_t* w = (*this)[row];
    return w[0] >= 0 && w[1] >= 0 && w[2] >= 1 && w[3] >= 1 && w[2] <= height && w[3] <= width &&
           w[0] <= height - w[2] && w[1] <= width - w[3];
  }
};

}  // namespace gpupipe
