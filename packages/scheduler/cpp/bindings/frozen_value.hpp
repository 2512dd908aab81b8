#pragma once

#include <pybind11/pybind11.h>

#include <initializer_list>
#include <vector>

namespace thalweg::scheduler {

// Makes instances of one frozen slotted dataclass of thalweg.interfaces.
//
// It stores every field at the offset of its slot instead of calling the generated `__init__`, which costs more than
// planning a small step does. The field names are compared with the class once, so that the two cannot drift.
class FrozenValue {
 public:
  FrozenValue(const char* class_name, std::initializer_list<const char*> fields);

  // `values` in field order, one per field.
  pybind11::object make(std::initializer_list<pybind11::handle> values) const;

 private:
  pybind11::object type_;
  std::vector<pybind11::ssize_t> offsets_;  // of the fields in an instance
};

}  // namespace thalweg::scheduler
