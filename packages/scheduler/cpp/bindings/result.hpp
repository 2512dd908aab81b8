#pragma once

#include <pybind11/numpy.h>

#include <span>
#include <string>

#include "thalweg/scheduler/step_result.hpp"

namespace thalweg::scheduler {

// Views of a thalweg.interfaces.StepResult, and what keeps them alive.
struct ReadResult {
  StepResult result;
  pybind11::object arrays[5];
};

// Reads StepResult objects and checks their arrays against what the step needs.
class ResultReader {
 public:
  ResultReader();

  std::int64_t step_of(pybind11::handle result) const;

  // width: draft columns of the step. Throws std::invalid_argument naming field, what it is and what is needed.
  ReadResult read(pybind11::handle result, std::size_t rows, std::size_t width) const;

 private:
  pybind11::str step_, sampled_, accepted_, drafts_, confidences_, row_status_;
};

}  // namespace thalweg::scheduler
