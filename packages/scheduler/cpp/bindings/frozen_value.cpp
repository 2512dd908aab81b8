#include "frozen_value.hpp"

#include <structmember.h>

#include <string>

namespace py = pybind11;

namespace thalweg::scheduler {
namespace {

// Where instances keep the attribute of one `__slots__` entry.
py::ssize_t offset_of(py::handle type, const char* field) {
  const py::object descriptor = type.attr("__dict__")[field];
  if (Py_TYPE(descriptor.ptr()) != &PyMemberDescr_Type)
    throw py::import_error(std::string(field) + " is no slot of " + std::string(py::str(type)));
  return reinterpret_cast<PyMemberDescrObject*>(descriptor.ptr())->d_member->offset;
}

}  // namespace

FrozenValue::FrozenValue(const char* class_name, std::initializer_list<const char*> fields)
    : type_(py::module_::import("thalweg.interfaces").attr(class_name)) {
  py::tuple names(fields.size());
  std::size_t i = 0;
  for (const char* field : fields) names[i++] = py::str(field);
  if (!names.equal(type_.attr("__match_args__")))
    throw py::import_error(std::string("the fields of thalweg.interfaces.") + class_name +
                           " are not those that this build of thalweg.scheduler knows; install matching versions");
  for (const char* field : fields) offsets_.push_back(offset_of(type_, field));
}

py::object FrozenValue::make(std::initializer_list<py::handle> values) const {
  auto* type = reinterpret_cast<PyTypeObject*>(type_.ptr());
  auto instance = py::reinterpret_steal<py::object>(type->tp_alloc(type, 0));
  if (!instance) throw py::error_already_set();
  auto offset = offsets_.begin();
  for (const py::handle value : values) {
    // The memory of a new instance is zero: there is nothing to let go of.
    auto* const slot = reinterpret_cast<char*>(instance.ptr()) + *offset++;
    *reinterpret_cast<PyObject**>(slot) = value.inc_ref().ptr();
  }
  return instance;
}

}  // namespace thalweg::scheduler
