// The function `color_stage` of the module.
#include "color.h"
#include "output.h"

namespace gpupipe {
namespace {

// The arguments are (colors, values, tables): int64 (B, n), the changes of each sample in order;
// float64 (B, n, kColorValues), their values; and uint8 (m, 256), for kTable. If B is 1, all
// samples have these changes.
class ColorStage : public Stage {
 public:
  bool read(PyObject* arguments) override {
    PyObject *colors, *values, *tables;
    if (!PyArg_ParseTuple(arguments, "OOO", &colors, &values, &tables)) return false;
    Buffer shape;
    if (!shape.open(colors, PyBUF_SIMPLE, "the colors", 2)) return false;
    count_ = shape.side(1);
    return colors_.open(colors, "the colors", count_) &&
           values_.open(values, "the values", count_ * kColorValues) &&
           tables_.open(tables, "the tables", kLevels) && add_rows(find_rows(colors_.rows())) &&
           check_changes();
  }

  bool takes_planes() const override { return true; }

  bool run(int row, Image* image, Arena& arena) const override {
    if (image->channels != 1 && image->channels != kChannels) return false;
    const Py_ssize_t own = rows() == kAnyRows ? 0 : row;
    std::vector<ColorChange> changes;
    for (Py_ssize_t n = 0; n < count_; ++n)
      if (find_color(own, n) != Color::kNone) changes.push_back(read_change(own, n));
    if (image->item_size != 1)
      return change_float_colors(changes, variant_, image, arena);
    return change_colors(changes, *variant_.color, image, arena);
  }

 private:
  static Py_ssize_t find_rows(Py_ssize_t rows) { return rows == 1 ? kAnyRows : rows; }

  Color find_color(Py_ssize_t row, Py_ssize_t n) const { return Color(colors_[row][n]); }

  const double* find_values(Py_ssize_t row, Py_ssize_t n) const {
    return values_[row] + n * kColorValues;
  }

  ColorChange read_change(Py_ssize_t row, Py_ssize_t n) const {
    ColorChange change = {find_color(row, n), {}, nullptr};
    std::copy_n(find_values(row, n), kColorValues, change.values);
    if (change.color == Color::kTable) change.table = tables_[Py_ssize_t(change.values[0])];
    return change;
  }

  bool check_changes() const {
    if (values_.rows() != colors_.rows()) return refuse("the colors and values differ in rows");
    for (Py_ssize_t row = 0; row < colors_.rows(); ++row) {
      for (Py_ssize_t n = 0; n < count_; ++n) {
        const Color color = find_color(row, n);
        const double* const values = find_values(row, n);
        if (const char* const mistake = check_color(color, values)) return refuse(mistake);
        if (color == Color::kTable && !(values[0] >= 0 && values[0] < double(tables_.rows())))
          return refuse("a change names a table that is not there");
      }
    }
    return true;
  }

  const Variant& variant_ = *g_variant;
  Py_ssize_t count_ = 0;
  RowValues<int64_t> colors_;
  RowValues<double> values_;
  RowValues<uint8_t> tables_;
};

}  // namespace

PyObject* color_stage(PyObject* module, PyObject* arguments) {
  return create_stage<ColorStage>(module, arguments);
}

}  // namespace gpupipe
