// The function `create_run` of the module, and the type Run: a program on the contents of a batch.
#include <atomic>
#include <memory>
#include <vector>

#include "content.h"
#include "file_set.h"

namespace gpupipe {
namespace {

class BatchRun {
 public:
  // Takes (program, contents, files, positions) of `create_run`.
  bool open(PyObject* arguments) {
    PyObject *capsule, *object, *files, *positions;
    if (!PyArg_ParseTuple(arguments, "OOOO", &capsule, &object, &files, &positions) ||
        !program_.read(capsule))
      return false;
    // Reading a buffer may run code of Python, which could change a list.
    const Reference contents(PySequence_Tuple(object));
    if (!contents) return false;
    count_ = size_t(PyTuple_Size(contents.get()));
    if (count_ > size_t(INT32_MAX) ||
        (program_->rows() != Stage::kAnyRows && program_->rows() != Py_ssize_t(count_)))
      return refuse("there is not one content for each row");
    if (positions != Py_None) {
      if (!positions_.open(positions, "the positions", 1)) return false;
      if (positions_.rows() != Py_ssize_t(count_))
        return refuse("there is not one position for each row");
    }
    contents_.reset(new Content[count_]);
    parts_.assign(count_, nullptr);
    FileSet* const set = files == Py_None ? nullptr : get_files(files);
    if (!set && files != Py_None) return false;
    if (set) Py_INCREF(files), files_.reset(files);
    std::vector<bool> have_rows(set ? set->count() : 0);  // of each file
    for (size_t n = 0; n < count_; ++n) {
      PyObject* const content = PyTuple_GetItem(contents.get(), Py_ssize_t(n));
      if (content != Py_None) {
        if (!contents_[n].read(content)) return false;
        continue;
      }
      const int64_t at = positions == Py_None ? int64_t(n) : *positions_[Py_ssize_t(n)];
      if (!set || at < 0 || size_t(at) >= set->count())
        return refuse("a row has neither a content nor a file");
      if (have_rows[size_t(at)]) return refuse("two rows have the same file");
      have_rows[size_t(at)] = true;
      parts_[n] = &(*set)[size_t(at)];
    }
    return true;
  }

  // Runs rows n with begin <= n < end; appends those that cannot be done here. Frees the files of
  // the others, since the GIL would be held where their set is freed. Does not touch Python.
  // Several threads may run other rows at once.
  void run(size_t begin, size_t end, std::vector<int>* failed) const {
    Image image;
    size_t n = begin;
    for (; n < end && !is_cancelled_; ++n) {
      if (parts_[n]) contents_[n].set_file(parts_[n]->data(), parts_[n]->size());
      if (!run_row(*program_, int(n), contents_[n], &image)) failed->push_back(int(n));
    }
    size_t kept = 0;
    for (size_t done = begin; done < n; ++done)
      if (kept < failed->size() && (*failed)[kept] == int(done))
        ++kept;
      else if (parts_[done])
        std::free(parts_[done]->release());
  }

  void cancel() { is_cancelled_ = true; }
  size_t count() const { return count_; }

 private:
  InnerStage program_;
  Reference files_;
  RowValues<int64_t> positions_;
  std::unique_ptr<Content[]> contents_;
  std::vector<Part*> parts_;  // the file of each content that is in one
  size_t count_ = 0;
  std::atomic<bool> is_cancelled_{false};
};

struct Run {
  PyObject_HEAD
  BatchRun* run;
};

PyTypeObject* g_run = nullptr;  // set once, when the module is imported

PyObject* run(PyObject* self, PyObject* arguments) {
  const BatchRun& batch = *reinterpret_cast<Run*>(self)->run;
  Py_ssize_t begin, end;
  if (!PyArg_ParseTuple(arguments, "nn", &begin, &end)) return nullptr;
  if (begin < 0 || begin > end || size_t(end) > batch.count())
    return PyErr_Format(PyExc_IndexError, "there are no rows %zd to %zd", begin, end);
  std::vector<int> failed;
  if (!run_without_gil([&] { batch.run(size_t(begin), size_t(end), &failed); })) return nullptr;
  Reference rows(PyList_New(Py_ssize_t(failed.size())));
  for (size_t n = 0; rows && n < failed.size(); ++n) {
    PyObject* const row = PyLong_FromLong(failed[n]);
    if (!row) return nullptr;
    PyList_SetItem(rows.get(), Py_ssize_t(n), row);
  }
  return rows.release();
}

PyObject* cancel(PyObject* self, PyObject*) {
  reinterpret_cast<Run*>(self)->run->cancel();
  Py_RETURN_NONE;
}

void free_run(PyObject* self) {
  PyTypeObject* const type = Py_TYPE(self);
  delete reinterpret_cast<Run*>(self)->run;
  PyObject_Free(self);
  Py_DECREF(type);
}

PyObject* create_type() {
  static PyMethodDef methods[] = {
      {"run", run, METH_VARARGS,
       "run(begin, end) -> list\n\n"
       "Run the program on these rows without the GIL. Return the rows that it cannot do."},
      {"cancel", cancel, METH_NOARGS, "cancel()\n\nRun no further row, in no thread."},
      {nullptr, nullptr, 0, nullptr},
  };
  static PyType_Slot slots[] = {
      {Py_tp_methods, methods},
      {Py_tp_dealloc, reinterpret_cast<void*>(free_run)},
      {Py_tp_doc, const_cast<char*>("A program on the contents of a batch.")},
      {0, nullptr},
  };
  static PyType_Spec spec = {"gpupipe._kernels.Run", sizeof(Run), 0,
                             Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, slots};
  return PyType_FromSpec(&spec);
}

}  // namespace

bool create_run_type() {
  if (!g_run) g_run = reinterpret_cast<PyTypeObject*>(create_type());
  return g_run != nullptr;
}

PyObject* create_run(PyObject*, PyObject* arguments) {
  return catch_errors([=]() -> PyObject* {
    std::unique_ptr<BatchRun> batch(new BatchRun);
    if (!batch->open(arguments)) return nullptr;
    auto* const object = PyObject_New(Run, g_run);
    if (!object) return nullptr;
    object->run = batch.release();
    return reinterpret_cast<PyObject*>(object);
  });
}

}  // namespace gpupipe
