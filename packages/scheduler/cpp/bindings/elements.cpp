#include "elements.hpp"

#include <stdexcept>
#include <vector>

namespace py = pybind11;

namespace thalweg::scheduler {
namespace {

std::string shape_text(ArrayShape shape) {
  py::tuple numbers(shape.size());
  for (std::size_t i = 0; i < shape.size(); ++i) numbers[i] = shape[i];
  return py::str(numbers);
}

}  // namespace

void refuse_array(py::handle object, const py::str& name, const py::dtype& dtype, ArrayShape shape,
                  bool may_be_unknown) {
  const std::string found = py::isinstance<py::array>(object)
                                ? py::str("{} {}").format(object.attr("dtype"), object.attr("shape"))
                                : py::str(py::type::of(object).attr("__name__"));
  std::string wanted = shape_text(shape);
  if (may_be_unknown && shape[1] != 0) wanted += " or " + shape_text(std::vector<std::size_t>{shape[0], 0});
  throw std::invalid_argument(std::string(name) + " is " + found + "; this step needs " +
                              std::string(py::str(dtype)) + " " + wanted);
}

bool has_shape(const py::array& array, ArrayShape shape, bool may_be_unknown) {
  if (static_cast<std::size_t>(array.ndim()) != shape.size()) return false;
  if (static_cast<std::size_t>(array.shape(0)) != shape[0]) return false;
  if (shape.size() == 1) return true;
  const auto width = static_cast<std::size_t>(array.shape(1));
  return width == shape[1] || (may_be_unknown && width == 0);
}

}  // namespace thalweg::scheduler
