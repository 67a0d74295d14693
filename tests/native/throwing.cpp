// A module whose stages throw, for test_without_gil.py.
#include <stdexcept>

#include "stage.h"

namespace {

class ThrowingStage : public gpupipe::Stage {
 public:
  bool read(PyObject* arguments) override { return PyArg_ParseTuple(arguments, "i", &kind_); }

  bool run(int, gpupipe::Image*, gpupipe::Arena&) const override {
    if (kind_ == 0) throw std::bad_alloc();
    if (kind_ == 1) throw std::length_error("a vector is too long");
    if (kind_ == 2) throw 5;
    return true;
  }

 private:
  int kind_ = 0;
};

class ThrowingItem {
 public:
  bool parse(PyObject*) { throw std::bad_alloc(); }
  void run() {}
  PyObject* take() { return nullptr; }
};

PyMethodDef kMethods[] = {
    {"run_each", gpupipe::run_each<ThrowingItem>, METH_O, nullptr},
    {"stage", gpupipe::create_stage<ThrowingStage>, METH_VARARGS, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef kModule = {PyModuleDef_HEAD_INIT, "throwing", nullptr, 0,      kMethods,
                       nullptr,               nullptr,    nullptr, nullptr};

}  // namespace

PyMODINIT_FUNC PyInit_throwing() { return PyModuleDef_Init(&kModule); }
