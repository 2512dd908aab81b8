#include "result.hpp"

#include <algorithm>
#include <stdexcept>

#include "arrays.hpp"

namespace py = pybind11;

namespace thalweg::scheduler {
namespace {

using Shape = std::span<const std::size_t>;

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

std::string shape_text(Shape shape) {
  py::tuple numbers(shape.size());
  for (std::size_t i = 0; i < shape.size(); ++i) numbers[i] = shape[i];
  return py::str(numbers);
}

template <class Value>
[[noreturn]] void refuse(py::handle object, const py::str& name, Shape shape, bool may_be_unknown) {
  const std::string found = py::isinstance<py::array>(object)
                                ? py::str("{} {}").format(object.attr("dtype"), object.attr("shape"))
                                : py::str(py::type::of(object).attr("__name__"));
  std::string wanted = shape_text(shape);
  if (may_be_unknown && shape[1] != 0) wanted += " or " + shape_text(std::vector<std::size_t>{shape[0], 0});
  throw std::invalid_argument(std::string(name) + " is " + found + "; this step needs " +
                              std::string(py::str(py::dtype::of<Value>())) + " " + wanted);
}

template <class Value>
bool has_dtype(const py::array& array) {
  const py::dtype dtype = array.dtype();
  return dtype.normalized_num() == py::dtype::num_of<Value>() && (dtype.byteorder() == '=' || dtype.byteorder() == '|');
}

bool has_shape(const py::array& array, Shape shape, bool may_be_unknown) {
  if (static_cast<std::size_t>(array.ndim()) != shape.size()) return false;
  if (static_cast<std::size_t>(array.shape(0)) != shape[0]) return false;
  if (shape.size() == 1) return true;
  const auto width = static_cast<std::size_t>(array.shape(1));
  return width == shape[1] || (may_be_unknown && width == 0);
}

// The elements of a field; `keep` gets the array that they live in.
template <class Value>
std::span<const Value> elements(py::object object, const py::str& name, Shape shape, bool may_be_unknown,
                                py::object& keep) {
  if (!py::isinstance<py::array>(object)) refuse<Value>(object, name, shape, may_be_unknown);
  auto array = py::reinterpret_steal<py::array>(object.release());
  if (!has_dtype<Value>(array) || !has_shape(array, shape, may_be_unknown))
    refuse<Value>(array, name, shape, may_be_unknown);
  if ((array.flags() & readable) != readable) {
    array = py::array_t<Value, readable>::ensure(array);
    if (!array) throw py::error_already_set();
  }
  const std::span<const Value> values(static_cast<const Value*>(array.data()), static_cast<std::size_t>(array.size()));
  keep = std::move(array);
  return values;
}

}  // namespace

ResultReader::ResultReader()
    : step_(interned("step")),
      sampled_(interned("sampled_token_ids")),
      accepted_(interned("accepted_token_ids")),
      drafts_(interned("draft_token_ids")),
      confidences_(interned("confidences")),
      row_status_(interned("row_status")) {}

std::int64_t ResultReader::step_of(py::handle result) const { return attribute(result, step_).cast<std::int64_t>(); }

ReadResult ResultReader::read(py::handle object, std::size_t rows, std::size_t width) const {
  const std::size_t column[] = {rows};
  const std::size_t matrix[] = {rows, width};
  ReadResult read;
  StepResult& result = read.result;
  const auto field = [&]<class Value>(std::span<const Value>& out, const py::str& name, Shape shape, int index) {
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
