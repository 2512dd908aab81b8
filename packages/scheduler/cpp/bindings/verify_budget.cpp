#include "thalweg/scheduler/verify_budget.hpp"

#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <string>

#include "arrays.hpp"
#include "bind.hpp"
#include "step_times.hpp"
#include "thalweg/scheduler/survival.hpp"

namespace py = pybind11;

namespace thalweg::scheduler {

namespace {

using Rows = std::vector<py::object>;
using FloatArray = py::array_t<float, readable>;

// The rows of a Python list, one after the other.
struct FlatRows {
  std::vector<float> values;
  std::vector<std::int32_t> offsets{0};
};

FloatArray float_row(const std::string& name, const py::object& row) {
  if (py::isinstance<py::array_t<float>>(row) && py::reinterpret_borrow<py::array>(row).ndim() == 1)
    return FloatArray::ensure(row);
  const std::string found = py::isinstance<py::array>(row)
                                ? py::str("{} array of shape {}").format(row.attr("dtype"), row.attr("shape"))
                                : py::str(py::type::of(row).attr("__name__"));
  throw std::invalid_argument(name + " is a " + found + "; an array of float32 with one dimension is needed");
}

FlatRows flatten(const char* name, const Rows& rows) {
  FlatRows flat;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const FloatArray row = float_row(std::string(name) + "[" + std::to_string(i) + "]", rows[i]);
    flat.values.insert(flat.values.end(), row.data(), row.data() + row.size());
    flat.offsets.push_back(static_cast<std::int32_t>(flat.values.size()));
  }
  return flat;
}

void require_same_shape(const FlatRows& budget, const FlatRows& split) {
  if (budget.offsets.size() != split.offsets.size())
    throw std::invalid_argument("budget_survival has " + std::to_string(budget.offsets.size() - 1) +
                                " rows and split_survival " + std::to_string(split.offsets.size() - 1) +
                                "; they must be as many");
  for (std::size_t i = 0; i + 1 < budget.offsets.size(); ++i) {
    const auto in_budget = budget.offsets[i + 1] - budget.offsets[i];
    const auto in_split = split.offsets[i + 1] - split.offsets[i];
    const std::string row = "[" + std::to_string(i) + "]";
    if (in_budget != in_split)
      throw std::invalid_argument("budget_survival" + row + " has " + std::to_string(in_budget) +
                                  " drafts and split_survival" + row + " " + std::to_string(in_split) +
                                  "; they must be as many");
  }
}

py::array_t<std::int32_t> verify_lengths(VerifyBudget& budget, const Rows& budget_survival,
                                         const Rows& split_survival) {
  const FlatRows first = flatten("budget_survival", budget_survival);
  const FlatRows second = flatten("split_survival", split_survival);
  require_same_shape(first, second);
  py::array_t<std::int32_t> lengths(static_cast<py::ssize_t>(budget_survival.size()));
  budget.verify_lengths(first.values, second.values, first.offsets,
                        {lengths.mutable_data(), budget_survival.size()});
  return lengths;
}

std::span<const float> span_of(const std::optional<FloatArray>& array) {
  if (!array) return {};
  return {array->data(), static_cast<std::size_t>(array->size())};
}

py::array_t<float> known_or(float unknown, std::span<const float> round, std::size_t num_drafts) {
  py::array_t<float> survival(static_cast<py::ssize_t>(num_drafts));
  if (round.empty()) std::fill_n(survival.mutable_data(), num_drafts, unknown);
  else std::copy(round.begin(), round.end(), survival.mutable_data());
  return survival;
}

py::tuple survival_for_step(std::size_t num_drafts, bool has_draft_info, std::uint32_t schedule_count,
                            std::uint32_t process_count, const std::optional<FloatArray>& rates,
                            const std::optional<FloatArray>& prev_rates) {
  const StepRounds rounds = rounds_for_step({
      .num_drafts = num_drafts,
      .has_draft_info = has_draft_info,
      .schedule_count = schedule_count,
      .process_count = process_count,
      .latest = span_of(rates),
      .previous = span_of(prev_rates),
  });
  return py::make_tuple(known_or(rounds.unknown, rounds.budget, num_drafts),
                        known_or(rounds.unknown, rounds.split, num_drafts));
}

py::array_t<float> running_product(const FloatArray& confidences) {
  py::array_t<float> survival(confidences.size());
  const auto size = static_cast<std::size_t>(confidences.size());
  write_survival({confidences.data(), size}, 0.0F, {survival.mutable_data(), size});
  return survival;
}

}  // namespace

void bind_verify_budget(py::module_& module) {
  py::class_<VerifyBudget>(module, "VerifyBudget", R"(Maximises expected tokens per millisecond of each decode step.

Satisfies thalweg.interfaces.VerifyBudget; `thalweg.dspark.ThroughputBudget` is its readable twin.)")
      .def(py::init())
      .def(
          "set_step_time_curve",
          [](VerifyBudget& budget, const std::vector<std::pair<std::int64_t, double>>& points) {
            budget.set_step_time_curve(step_times(points));
          },
          py::arg("points"), "Take a measured curve; what was learned against an earlier one is forgotten.")
      .def("record_step_time", &VerifyBudget::record_step_time, py::arg("num_rows").noconvert(),
           py::arg("graph_size").noconvert(), py::arg("forward_ms"), py::arg("sampler_ms"), "Learn from a decode step.")
      .def("verify_lengths", &verify_lengths, py::arg("budget_survival"), py::arg("split_survival"),
           "Query length of each sequence: 1 + drafts to verify.")
      .def_property_readonly("slope_ms", &VerifyBudget::slope_ms)
      .def_property_readonly("sampler_fallback_ms", &VerifyBudget::sampler_fallback_ms);
  module.def("survival_for_step", &survival_for_step, py::kw_only(), py::arg("num_drafts"), py::arg("has_draft_info"),
             py::arg("schedule_count"), py::arg("process_count"), py::arg("rates"), py::arg("prev_rates"),
             "Survival of one sequence's drafts, for the budget and for the split of the step now being planned.");
  module.def("running_product", &running_product, py::arg("confidences"),
             "Survival of each draft from the confidences of one round.");
}

}  // namespace thalweg::scheduler
