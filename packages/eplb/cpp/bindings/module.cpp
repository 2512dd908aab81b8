#include <pybind11/pybind11.h>

#include "bind.hpp"

namespace py = pybind11;

PYBIND11_MODULE(_core, module) {
  module.doc() = "C++ core of thalweg.eplb";
  thalweg::eplb::bind_reference(module);
  thalweg::eplb::bind_search(module);
  thalweg::eplb::bind_split(module);
  module.def(
      "build_info", [] { return py::dict(py::arg("version") = THALWEG_VERSION); },
      "Which source this library was built from, to recognise a stale one.");
}
