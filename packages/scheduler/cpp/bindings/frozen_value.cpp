#include "frozen_value.hpp"

#include <string>

namespace py = pybind11;

namespace thalweg::scheduler {

FrozenValue::FrozenValue(const char* class_name, std::initializer_list<const char*> fields)
    : type_(py::module_::import("thalweg.interfaces").attr(class_name)) {
  py::tuple names(fields.size());
  std::size_t i = 0;
  for (const char* field : fields) names[i++] = py::str(field);
  if (!names.equal(type_.attr("__match_args__")))
    throw py::import_error(std::string("the fields of thalweg.interfaces.") + class_name +
                           " are not those that this build of thalweg.scheduler knows; install matching versions");
  for (const char* field : fields) slots_.push_back(type_.attr("__dict__")[field]);
}

py::object FrozenValue::make(std::initializer_list<py::handle> values) const {
  auto* type = reinterpret_cast<PyTypeObject*>(type_.ptr());
  auto instance = py::reinterpret_steal<py::object>(type->tp_alloc(type, 0));
  if (!instance) throw py::error_already_set();
  auto slot = slots_.begin();
  for (const py::handle value : values) {
    const descrsetfunc set = Py_TYPE(slot->ptr())->tp_descr_set;
    if (set(slot->ptr(), instance.ptr(), value.ptr()) != 0) throw py::error_already_set();
    ++slot;
  }
  return instance;
}

}  // namespace thalweg::scheduler
