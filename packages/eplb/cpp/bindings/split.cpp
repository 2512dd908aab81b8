#include "thalweg/eplb/split.hpp"

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <stdexcept>

#include "bind.hpp"

namespace py = pybind11;

namespace thalweg::eplb {

namespace {

using IntArray = py::array_t<std::int32_t, py::array::c_style>;

Splitter make_splitter(const IntArray& logical_of_physical, std::size_t num_ranks, std::size_t num_experts) {
  if (logical_of_physical.ndim() != 2) throw std::invalid_argument("logical_of_physical must be [layers, slots]");
  const auto layers = static_cast<std::size_t>(logical_of_physical.shape(0));
  const auto slots = static_cast<std::size_t>(logical_of_physical.shape(1));
  if (num_ranks == 0 || slots % num_ranks != 0) throw std::invalid_argument("num_ranks must divide the slots");
  std::vector<bool> present(num_experts);
  for (std::size_t layer = 0; layer < layers; ++layer) {
    present.assign(num_experts, false);
    for (std::size_t slot = 0; slot < slots; ++slot) {
      const auto expert = static_cast<std::size_t>(logical_of_physical.data()[layer * slots + slot]);
      if (expert >= num_experts) throw std::invalid_argument("logical_of_physical has an expert out of range");
      present[expert] = true;
    }
    for (const bool is_present : present) {
      if (!is_present) throw std::invalid_argument("logical_of_physical lacks an expert");
    }
  }
  return Splitter(logical_of_physical.data(), layers, slots, num_ranks, num_experts);
}

IntArray split(const Splitter& splitter, const IntArray& tokens, int sweeps) {
  if (tokens.ndim() != 2 || static_cast<std::size_t>(tokens.shape(0)) != splitter.layers() ||
      static_cast<std::size_t>(tokens.shape(1)) != splitter.experts()) {
    throw std::invalid_argument("tokens must be [layers, experts]");
  }
  IntArray shares({splitter.layers(), splitter.slots()});
  const std::int32_t* source = tokens.data();
  std::int32_t* target = shares.mutable_data();
  const py::gil_scoped_release release;
  splitter.split(source, sweeps, target);
  return shares;
}

}  // namespace

void bind_split(py::module_& module) {
  py::class_<Splitter>(module, "Splitter", "Splits tokens over the copies of one placement.")
      .def(py::init(&make_splitter), py::arg("logical_of_physical").noconvert(), py::arg("num_ranks"),
           py::arg("num_experts"))
      .def("split", &split, py::arg("tokens").noconvert(), py::arg("sweeps"), "[layers, slots] tokens of each slot.");
}

}  // namespace thalweg::eplb
