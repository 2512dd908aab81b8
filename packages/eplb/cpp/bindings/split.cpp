#include "thalweg/eplb/split.hpp"

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <cstdint>
#include <limits>
#include <stdexcept>
#include <string>

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

// Throws unless the tokens of each layer are >= 0 and can be added up in int32.
void check_tokens(const std::int32_t* tokens, std::size_t layers, std::size_t experts) {
  constexpr std::int64_t most = std::numeric_limits<std::int32_t>::max();
  for (std::size_t layer = 0; layer < layers; ++layer) {
    std::int64_t sum = 0;
    std::int32_t negative = 0;
    for (std::size_t expert = 0; expert < experts; ++expert) {
      const std::int32_t count = tokens[layer * experts + expert];
      sum += count;
      negative |= count;
    }
    if (negative < 0) throw std::invalid_argument("tokens has a negative count; it must have integers >= 0");
    if (sum > most) {
      throw std::invalid_argument("tokens has a layer with more than " + std::to_string(most) + " tokens in one step");
    }
  }
}

std::string shape_of(const IntArray& tokens) {
  std::string text;
  for (py::ssize_t axis = 0; axis < tokens.ndim(); ++axis) {
    text += (axis > 0 ? ", " : "") + std::to_string(tokens.shape(axis));
  }
  return "tokens is [" + text + "]; it must be [";
}

void split_into(IntArray& shares, const Splitter& splitter, std::size_t first, std::size_t count,
                const IntArray& tokens, int sweeps) {
  const std::int32_t* source = tokens.data();
  std::int32_t* target = shares.mutable_data();
  const py::gil_scoped_release release;
  check_tokens(source, count, splitter.experts());
  splitter.split(first, count, source, sweeps, target);
}

IntArray split(const Splitter& splitter, const IntArray& tokens, int sweeps) {
  if (tokens.ndim() != 2 || static_cast<std::size_t>(tokens.shape(0)) != splitter.layers() ||
      static_cast<std::size_t>(tokens.shape(1)) != splitter.experts()) {
    throw std::invalid_argument(shape_of(tokens) + std::to_string(splitter.layers()) + " layers, " +
                                std::to_string(splitter.experts()) + " experts]");
  }
  IntArray shares({splitter.layers(), splitter.slots()});
  split_into(shares, splitter, 0, splitter.layers(), tokens, sweeps);
  return shares;
}

IntArray split_layer(const Splitter& splitter, std::int64_t layer, const IntArray& tokens, int sweeps) {
  if (layer < 0 || static_cast<std::size_t>(layer) >= splitter.layers()) {
    throw std::invalid_argument("layer is " + std::to_string(layer) + "; it must be in 0.." +
                                std::to_string(splitter.layers() - 1));
  }
  if (tokens.ndim() != 1 || static_cast<std::size_t>(tokens.shape(0)) != splitter.experts()) {
    throw std::invalid_argument(shape_of(tokens) + std::to_string(splitter.experts()) + " experts]");
  }
  IntArray shares(static_cast<py::ssize_t>(splitter.slots()));
  split_into(shares, splitter, static_cast<std::size_t>(layer), 1, tokens, sweeps);
  return shares;
}

}  // namespace

void bind_split(py::module_& module) {
  py::class_<Splitter>(module, "Splitter", "Splits tokens over the copies of one placement.")
      .def(py::init(&make_splitter), py::arg("logical_of_physical").noconvert(), py::arg("num_ranks"),
           py::arg("num_experts"))
      .def("split", &split, py::arg("tokens").noconvert(), py::arg("sweeps"), "[layers, slots] tokens of each slot.")
      .def("split_layer", &split_layer, py::arg("layer"), py::arg("tokens").noconvert(), py::arg("sweeps"),
           "[slots] tokens of each slot of one layer.");
}

}  // namespace thalweg::eplb
