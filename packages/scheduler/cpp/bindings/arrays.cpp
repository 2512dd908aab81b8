#include "arrays.hpp"

#include <algorithm>
#include <limits>
#include <string>

#include "thalweg/scheduler/errors.hpp"

namespace py = pybind11;

namespace thalweg::scheduler {

// py::array's constructors do the same, with several allocations per array: a plan has 22 arrays and a small step takes
// no longer than those.
py::object ArrayMaker::make(int type_number, std::span<const py::ssize_t> shape, void* data) const {
  const auto& numpy = py::detail::npy_api::get();
  const int flags = py::detail::npy_api::NPY_ARRAY_C_CONTIGUOUS_ | py::detail::npy_api::NPY_ARRAY_ALIGNED_ |
                    py::detail::npy_api::NPY_ARRAY_WRITEABLE_;
  auto array = py::reinterpret_steal<py::object>(
      numpy.PyArray_NewFromDescr_(numpy.PyArray_Type_, numpy.PyArray_DescrFromType_(type_number),
                                  static_cast<int>(shape.size()), shape.data(), nullptr, data, flags, nullptr));
  if (!array) throw py::error_already_set();
  if (numpy.PyArray_SetBaseObject_(array.ptr(), owner_.inc_ref().ptr()) != 0) throw py::error_already_set();
  return array;
}

std::vector<std::int32_t> prompt_tokens(const py::array& token_ids) {
  if (token_ids.ndim() != 1 || token_ids.size() == 0)
    throw RequestError("token_ids has shape " + std::string(py::str(token_ids.attr("shape"))) +
                       "; it must be [L] with L >= 1");
  if (token_ids.dtype().kind() != 'i' && token_ids.dtype().kind() != 'u')
    throw RequestError("token_ids has dtype " + std::string(py::str(token_ids.dtype())) +
                       "; it must be an integer array");
  const auto wide = py::array_t<std::int64_t, readable | py::array::forcecast>::ensure(token_ids);
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
