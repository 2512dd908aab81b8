#include "thalweg/eplb/search.hpp"

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <utility>

#include "bind.hpp"
#include "thalweg/eplb/search_history.hpp"

namespace py = pybind11;

namespace thalweg::eplb {
namespace {

using SlotArray = py::array_t<std::int32_t, py::array::c_style>;

void check_current(const SlotArray& current, std::size_t layers, std::size_t experts, std::size_t slots) {
  if (current.ndim() != 2 || static_cast<std::size_t>(current.shape(0)) != layers ||
      static_cast<std::size_t>(current.shape(1)) != slots)
    throw std::invalid_argument("current must be [layers, slots]");
  std::vector<std::size_t> copies(experts);
  for (std::size_t layer = 0; layer < layers; ++layer) {
    std::fill(copies.begin(), copies.end(), 0);
    const std::int32_t* first = current.data() + layer * slots;
    for (std::size_t slot = 0; slot < slots; ++slot) {
      if (first[slot] < 0 || static_cast<std::size_t>(first[slot]) >= experts)
        throw std::invalid_argument("current holds an expert that the history does not have");
      ++copies[static_cast<std::size_t>(first[slot])];
    }
    if (std::find(copies.begin(), copies.end(), 0) != copies.end())
      throw std::invalid_argument("current must hold every expert in every layer");
  }
}

template <class Count>
SlotArray search_layers(const py::array_t<Count, py::array::c_style>& history, std::size_t num_slots,
                        std::size_t num_ranks, const std::optional<SlotArray>& current, std::int64_t proposals,
                        double move_price, double min_gain, std::uint64_t seed) {
  if (history.ndim() != 3 || history.size() == 0)
    throw std::invalid_argument("history must be [steps, layers, experts], none of them 0");
  const auto num_steps = static_cast<std::size_t>(history.shape(0));
  const auto num_layers = static_cast<std::size_t>(history.shape(1));
  const auto num_experts = static_cast<std::size_t>(history.shape(2));
  if (num_ranks == 0 || num_slots < num_experts || num_slots % num_ranks != 0)
    throw std::invalid_argument("num_slots must hold every expert and be a multiple of num_ranks");
  if (current) check_current(*current, num_layers, num_experts, num_slots);
  SlotArray planned({num_layers, num_slots});
  const Count* counts = history.data();
  const std::int32_t* held = current ? current->data() : nullptr;
  std::int32_t* result = planned.mutable_data();
  {
    const py::gil_scoped_release release;
    for (std::size_t layer = 0; layer < num_layers; ++layer) {
      const LayerHistory<Count> of_layer{counts, num_steps, num_layers, num_experts, layer};
      const SearchProblem problem(bucket_steps(of_layer), num_experts, num_slots, num_ranks);
      std::optional<Slots> before;
      if (held != nullptr) before.emplace(held + layer * num_slots, held + (layer + 1) * num_slots);
      const Slots slots = search(problem, before, {proposals, move_price, min_gain, seed + layer});
      std::copy(slots.begin(), slots.end(), result + layer * num_slots);
    }
  }
  return planned;
}

template <class Count>
void bind_search_of(py::module_& module) {
  module.def("search_layers", &search_layers<Count>, py::arg("history").noconvert(), py::arg("num_slots"),
             py::arg("num_ranks"), py::arg("current"), py::arg("proposals"), py::arg("move_price"),
             py::arg("min_gain"), py::arg("seed"), "[layers, slots] the expert of each slot.");
}

}  // namespace

void bind_search(py::module_& module) {
  bind_search_of<std::uint16_t>(module);
  bind_search_of<std::int32_t>(module);
  bind_search_of<std::int64_t>(module);
  bind_search_of<float>(module);
  bind_search_of<double>(module);
}

}  // namespace thalweg::eplb
