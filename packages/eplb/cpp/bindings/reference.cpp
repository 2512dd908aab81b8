#include "thalweg/eplb/reference.hpp"

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <cstdint>
#include <stdexcept>
#include <vector>

#include "bind.hpp"

namespace py = pybind11;

namespace thalweg::eplb {

namespace {

using FloatArray = py::array_t<float, py::array::c_style>;

py::array_t<std::int32_t> to_array(const std::vector<std::int32_t>& values) {
  return py::array_t<std::int32_t>(static_cast<py::ssize_t>(values.size()), values.data());
}

py::tuple plan_reference(const FloatArray& counts, std::size_t num_slots, std::size_t num_ranks) {
  if (counts.ndim() != 2) throw std::invalid_argument("counts must be [steps, experts]");
  const Counts view{counts.data(), static_cast<std::size_t>(counts.shape(0)), static_cast<std::size_t>(counts.shape(1))};
  if (view.experts == 0 || num_ranks == 0 || num_slots < view.experts || num_slots % num_ranks != 0) {
    throw std::invalid_argument("num_slots must hold every expert and be a multiple of num_ranks");
  }
  std::vector<std::int32_t> slot_of_copy, held(num_slots);
  {
    const py::gil_scoped_release release;
    const std::vector<std::int32_t> experts = replicate_by_peak(view, num_slots);
    slot_of_copy = pack_by_peak(view, experts, num_ranks);
    for (std::size_t copy = 0; copy < num_slots; ++copy) {
      held[static_cast<std::size_t>(slot_of_copy[copy])] = experts[copy];
    }
  }
  return py::make_tuple(to_array(held), to_array(slot_of_copy));
}

}  // namespace

void bind_reference(py::module_& module) {
  module.def("plan_reference", &plan_reference, py::arg("counts").noconvert(), py::arg("num_slots"),
             py::arg("num_ranks"), "The expert of each slot, and the slot of each copy in the order they were given.");
}

}  // namespace thalweg::eplb
