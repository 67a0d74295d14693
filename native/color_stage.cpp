// The function `color_stage` of the module.
#include "color.h"
#include "output.h"

namespace gpupipe {
namespace {

// An array (rows,) or (rows, columns) of bool, int32, int64 or float64, with any strides.
class Numbers {
 public:
  bool open(PyObject* object) {
    if (!buffer_.open(object, PyBUF_STRIDES | PyBUF_FORMAT)) return false;
    const bool is_known = buffer_.has_format("?i") || buffer_.has_format("lqd");
    if (!is_known || buffer_.axes() < 1 || buffer_.axes() > 2 || columns() < 1)
      return refuse("an argument of a change is no array of bool, int32, int64 or float64");
    // A long, `l`, has 4 or 8 bytes.
    const bool has_8 = buffer_.item_size() == 8;
    kind_ = buffer_.has_format("?d") ? (has_8 ? 'd' : '?') : has_8 ? 'q' : 'i';
    return true;
  }

  Py_ssize_t rows() const { return buffer_.side(0); }
  Py_ssize_t columns() const { return buffer_.axes() == 2 ? buffer_.side(1) : 1; }

  double get(Py_ssize_t row, Py_ssize_t column = 0) const {
    const uint8_t* at = buffer_.bytes() + row * buffer_.stride(0);
    if (column) at += column * buffer_.stride(1);
    switch (kind_) {
      case '?': return *at;
      case 'i': return double(read<int32_t>(at));
      case 'q': return double(read<int64_t>(at));
      default: return read<double>(at);
    }
  }

 private:
  template <typename T>
  static T read(const uint8_t* at) {
    T number;
    std::memcpy(&number, at, sizeof(T));
    return number;
  }

  Buffer buffer_;
  char kind_ = 0;
};

// A change of the colours of some samples, by one function or by one of several. It is read as
// (functions, index, values, rows): see `color_stage` in module.cpp.
class Column {
 public:
  bool read(PyObject* tuple) {
    PyObject *functions, *index, *values, *rows;
    if (!PyTuple_Check(tuple)) return refuse("a change is no tuple");
    if (!PyArg_ParseTuple(tuple, "O!OO!O", &PyTuple_Type, &functions, &index, &PyTuple_Type,
                          &values, &rows))
      return false;
    functions_.resize(size_t(PyTuple_Size(functions)));
    for (size_t n = 0; n < functions_.size(); ++n) {
      PyObject* const function = PyTuple_GetItem(functions, Py_ssize_t(n));
      Function& own = functions_[n];
      long long number;
      if (!PyTuple_Check(function)) return refuse("a function of a change is no tuple");
      if (!PyArg_ParseTuple(function, "Lddp", &number, &own.min, &own.max, &own.is_whole))
        return false;
      own.color = Color(number);
    }
    has_index_ = index != Py_None, has_rows_ = rows != Py_None;
    if ((has_index_ && !index_.open(index)) || (has_rows_ && !rows_.open(rows))) return false;
    count_ = size_t(PyTuple_Size(values));
    values_.reset(new Numbers[count_]);
    Py_ssize_t columns = 0;
    for (size_t n = 0; n < count_; ++n) {
      if (!values_[n].open(PyTuple_GetItem(values, Py_ssize_t(n)))) return false;
      columns += values_[n].columns();
    }
    if (has_index_ ? (count_ != 1 && count_ != functions_.size()) || columns != Py_ssize_t(count_)
                   : functions_.size() != 1 || columns > kColorValues)
      return refuse("a change has another number of values than its functions");
    return true;
  }

  // Calls a function with the number of rows of each array until it returns false.
  template <typename Function>
  bool all_of_arrays(const Function& add) const {
    if ((has_index_ && !add(index_.rows())) || (has_rows_ && !add(rows_.rows()))) return false;
    for (size_t n = 0; n < count_; ++n)
      if (!add(values_[n].rows())) return false;
    return true;
  }

  bool has_function(Py_ssize_t row) const {
    const double n = has_index_ ? index_.get(row) : 0;
    return n >= 0 && n < double(functions_.size());
  }

  // Returns the change of a sample, which has_function; kNone if it has none.
  ColorChange find(Py_ssize_t row) const {
    ColorChange change = {Color::kNone, {}, nullptr};
    if (has_rows_ && !rows_.get(row)) return change;
    const size_t number = has_index_ ? size_t(index_.get(row)) : 0;
    const Function& function = functions_[number];
    change.color = function.color;
    if (has_index_) {
      const double value = values_[count_ > 1 ? number : 0].get(row);
      const double clipped = std::min(std::max(value, function.min), function.max);
      change.values[0] = function.is_whole ? std::trunc(clipped) : clipped;
      return change;
    }
    double* to = change.values;
    for (size_t n = 0; n < count_; ++n)
      for (Py_ssize_t c = 0; c < values_[n].columns(); ++c) *to++ = values_[n].get(row, c);
    return change;
  }

 private:
  struct Function {
    Color color = Color::kNone;
    double min = 0, max = 0;
    int is_whole = 0;
  };

  std::vector<Function> functions_;
  std::unique_ptr<Numbers[]> values_;
  size_t count_ = 0;
  Numbers index_, rows_;
  bool has_index_ = false, has_rows_ = false;
};

// The arguments are (columns, tables): a tuple with the changes of each sample in order, and uint8
// (m, 256), for kTable.
class ColorStage : public Stage {
 public:
  bool read(PyObject* arguments) override {
    PyObject *columns, *tables;
    if (!PyArg_ParseTuple(arguments, "O!O", &PyTuple_Type, &columns, &tables) ||
        !tables_.open(tables, "the tables", kLevels))
      return false;
    count_ = size_t(PyTuple_Size(columns));
    columns_.reset(new Column[count_]);
    for (size_t n = 0; n < count_; ++n) {
      if (!columns_[n].read(PyTuple_GetItem(columns, Py_ssize_t(n))) ||
          !columns_[n].all_of_arrays([&](Py_ssize_t count) { return add_rows(count); }))
        return false;
    }
    const char* mistake = nullptr;
    return run_without_gil([&] { mistake = find_mistake(); }) && (!mistake || refuse(mistake));
  }

  bool takes_planes() const override { return true; }

  bool run(int row, Image* image, Arena& arena) const override {
    if (image->channels != 1 && image->channels != kChannels) return false;
    std::vector<ColorChange> changes;
    for (size_t n = 0; n < count_; ++n) {
      ColorChange change = columns_[n].find(row);
      if (change.color == Color::kNone) continue;
      if (change.color == Color::kTable) change.table = tables_[Py_ssize_t(change.values[0])];
      changes.push_back(change);
    }
    if (image->item_size != 1)
      return change_float_colors(changes, variant_, image, arena);
    return change_colors(changes, *variant_.color, image, arena);
  }

 private:
  // Returns what is wrong with the changes; null if nothing is.
  const char* find_mistake() const {
    const Py_ssize_t count = rows() == kAnyRows ? 1 : rows();
    for (size_t n = 0; n < count_; ++n) {
      for (Py_ssize_t row = 0; row < count; ++row) {
        if (!columns_[n].has_function(row)) return "the index names a function that is not there";
        const ColorChange change = columns_[n].find(row);
        if (const char* const mistake = check_color(change.color, change.values)) return mistake;
        const double table = change.values[0];
        if (change.color == Color::kTable && !(table >= 0 && table < double(tables_.rows())))
          return "a change names a table that is not there";
      }
    }
    return nullptr;
  }

  const Variant& variant_ = *g_variant;
  std::unique_ptr<Column[]> columns_;
  size_t count_ = 0;
  RowValues<uint8_t> tables_;
};

}  // namespace

PyObject* color_stage(PyObject* module, PyObject* arguments) {
  return create_stage<ColorStage>(module, arguments);
}

}  // namespace gpupipe
