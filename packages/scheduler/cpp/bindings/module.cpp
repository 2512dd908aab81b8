#include <pybind11/pybind11.h>

#include "bind.hpp"
#include "thalweg/scheduler/errors.hpp"

namespace py = pybind11;

namespace {

void raise(const char* class_name, const std::exception& error) {
  py::set_error(py::module_::import("thalweg.interfaces").attr(class_name), error.what());
}

void translate(std::exception_ptr pointer) {
  try {
    if (pointer) std::rethrow_exception(pointer);
  } catch (const thalweg::scheduler::ConfigError& error) {
    raise("ConfigError", error);
  } catch (const thalweg::scheduler::RequestError& error) {
    raise("RequestError", error);
  } catch (const thalweg::scheduler::CapacityError& error) {
    raise("CapacityError", error);
  } catch (const thalweg::scheduler::LockTimeoutError& error) {
    py::set_error(PyExc_TimeoutError, error.what());
  } catch (const thalweg::scheduler::InvariantError& error) {
    raise("InvariantError", error);
  }
}

}  // namespace

PYBIND11_MODULE(_core, module) {
  module.doc() = "C++ core of thalweg.scheduler";
  py::register_local_exception_translator(translate);
  thalweg::scheduler::bind_block_pool(module);
  thalweg::scheduler::bind_flops(module);
  thalweg::scheduler::bind_scheduler(module);
  thalweg::scheduler::bind_verify_budget(module);
  module.def(
      "build_info",
      [] { return py::dict(py::arg("version") = THALWEG_VERSION, py::arg("sanitizers") = THALWEG_SANITIZERS); },
      "Which source this library was built from, to recognise a stale one.");
}
