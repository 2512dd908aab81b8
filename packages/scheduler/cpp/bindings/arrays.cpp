#include "arrays.hpp"

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <string>

#include "thalweg/scheduler/errors.hpp"

namespace py = pybind11;

namespace thalweg::scheduler {
namespace {

std::string shape_text(std::size_t rows, std::optional<std::size_t> width) {
  return width ? "(" + std::to_string(rows) + ", " + std::to_string(*width) + ")" : "(" + std::to_string(rows) + ",)";
}

std::string description(py::handle object) {
  if (!py::isinstance<py::array>(object)) return py::str(py::type::of(object).attr("__name__"));
  return py::str("{} {}").format(object.attr("dtype"), object.attr("shape"));
}

bool has_shape(const py::array& array, std::size_t rows, std::optional<std::size_t> width, bool may_be_unknown) {
  if (array.ndim() != (width ? 2 : 1) || static_cast<std::size_t>(array.shape(0)) != rows) return false;
  if (!width) return true;
  const auto found = static_cast<std::size_t>(array.shape(1));
  return found == *width || (may_be_unknown && found == 0);
}

}  // namespace

template <class Value>
CheckedArray<Value>::CheckedArray(py::handle result, const char* name, std::size_t rows,
                                  std::optional<std::size_t> width, bool may_be_unknown) {
  const py::object object = result.attr(name);
  // Checks the dtype; any layout.
  if (!py::isinstance<py::array_t<Value, 0>>(object) ||
      !has_shape(py::reinterpret_borrow<py::array>(object), rows, width, may_be_unknown)) {
    std::string wanted = shape_text(rows, width);
    if (may_be_unknown && width && *width > 0) wanted += " or " + shape_text(rows, 0);
    throw std::invalid_argument(std::string(name) + " is " + description(object) + "; this step needs " +
                                std::string(py::str(py::dtype::of<Value>())) + " " + wanted);
  }
  array_ = py::array_t<Value, py::array::c_style>::ensure(object);
  if (!array_) throw py::error_already_set();
}

template class CheckedArray<std::int8_t>;
template class CheckedArray<std::int32_t>;
template class CheckedArray<float>;

std::vector<std::int32_t> prompt_tokens(const py::array& token_ids) {
  if (token_ids.ndim() != 1 || token_ids.size() == 0)
    throw RequestError("token_ids has shape " + std::string(py::str(token_ids.attr("shape"))) +
                       "; it must be [L] with L >= 1");
  if (token_ids.dtype().kind() != 'i' && token_ids.dtype().kind() != 'u')
    throw RequestError("token_ids has dtype " + std::string(py::str(token_ids.dtype())) +
                       "; it must be an integer array");
  const auto wide = py::array_t<std::int64_t, py::array::c_style | py::array::forcecast>::ensure(token_ids);
  if (!wide) throw py::error_already_set();
  const std::span values(wide.data(), static_cast<std::size_t>(wide.size()));
  const auto [smallest, largest] = std::minmax_element(values.begin(), values.end());
  if (*smallest < 0 || *largest > std::numeric_limits<std::int32_t>::max())
    throw RequestError("token_ids go from " + std::to_string(*smallest) + " to " + std::to_string(*largest) +
                       "; they must be 0 or more and fit int32");
  std::vector<std::int32_t> tokens(values.size());
  std::transform(values.begin(), values.end(), tokens.begin(), [](auto id) { return static_cast<std::int32_t>(id); });
  return tokens;
}

}  // namespace thalweg::scheduler
