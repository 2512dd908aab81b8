#include "result.hpp"

#include "elements.hpp"

namespace py = pybind11;

namespace thalweg::scheduler {
namespace {

py::str interned(const char* name) {
  PyObject* const text = PyUnicode_InternFromString(name);
  if (text == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::str>(text);
}

py::object attribute(py::handle object, const py::str& name) {
  PyObject* const value = PyObject_GetAttr(object.ptr(), name.ptr());
  if (value == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(value);
}

}  // namespace

ResultReader::ResultReader()
    : step_(interned("step")),
      sampled_(interned("sampled_token_ids")),
      accepted_(interned("accepted_token_ids")),
      drafts_(interned("draft_token_ids")),
      confidences_(interned("confidences")),
      row_status_(interned("row_status")) {}

std::int64_t ResultReader::step_of(py::handle result) const {
  const auto step = py::reinterpret_steal<py::object>(PyNumber_Index(attribute(result, step_).ptr()));
  if (!step) throw py::error_already_set();
  return step.cast<std::int64_t>();
}

ReadResult ResultReader::read(py::handle object, std::size_t rows, std::size_t width) const {
  const std::size_t column[] = {rows};
  const std::size_t matrix[] = {rows, width};
  ReadResult read;
  StepResult& result = read.result;
  const auto field = [&]<class Value>(std::span<const Value>& out, const py::str& name, ArrayShape shape, int index) {
    const bool may_be_unknown = &name == &confidences_;
    out = elements<Value>(attribute(object, name), name, shape, may_be_unknown, read.arrays[index]);
  };
  result.step = step_of(object);
  field(result.sampled_token_ids, sampled_, column, 0);
  field(result.accepted_token_ids, accepted_, matrix, 1);
  field(result.draft_token_ids, drafts_, matrix, 2);
  field(result.confidences, confidences_, matrix, 3);
  py::object row_status = attribute(object, row_status_);
  result.has_row_status = !row_status.is_none();
  if (result.has_row_status) field(result.row_status, row_status_, column, 4);
  return read;
}

}  // namespace thalweg::scheduler
