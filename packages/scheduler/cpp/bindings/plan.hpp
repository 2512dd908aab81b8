#pragma once

#include <pybind11/pybind11.h>

#include <memory>

#include "arrays.hpp"
#include "frozen_value.hpp"
#include "thalweg/scheduler/step_plan.hpp"

namespace thalweg::scheduler {

// Turns plans into thalweg.interfaces.StepPlan objects whose arrays share the memory of the C++ plan.
class PlanConverter {
 public:
  PlanConverter();

  pybind11::object convert(std::unique_ptr<StepPlan> plan) const;

 private:
  pybind11::object stats(const StepStats& stats) const;

  FrozenValue plan_type_;
  FrozenValue stats_type_;
  pybind11::object kinds_[2];
  EmptyArrays empty_;
};

}  // namespace thalweg::scheduler
