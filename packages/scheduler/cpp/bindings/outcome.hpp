#pragma once

#include <pybind11/pybind11.h>

#include "arrays.hpp"
#include "frozen_value.hpp"
#include "thalweg/scheduler/step_result.hpp"

namespace thalweg::scheduler {

// Turns outcomes into thalweg.interfaces.StepOutcome objects whose arrays share the memory of the C++ outcome.
class OutcomeConverter {
 public:
  OutcomeConverter();

  pybind11::object convert(StepOutcome&& outcome, std::size_t draft_length) const;

 private:
  FrozenValue outcome_type_;
  EmptyArrays empty_;
};

}  // namespace thalweg::scheduler
