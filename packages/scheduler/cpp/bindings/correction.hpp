#pragma once

#include <pybind11/pybind11.h>

#include "arrays.hpp"
#include "frozen_value.hpp"
#include "thalweg/scheduler/correction.hpp"

namespace thalweg::scheduler {

// Turns corrections into thalweg.interfaces.StepCorrection objects whose arrays share the memory of the C++ correction.
class CorrectionConverter {
 public:
  CorrectionConverter();

  pybind11::object convert(StepCorrection&& correction, std::size_t draft_length) const;

 private:
  FrozenValue correction_type_;
  EmptyArrays empty_;
};

}  // namespace thalweg::scheduler
