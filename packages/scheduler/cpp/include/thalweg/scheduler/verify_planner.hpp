#pragma once

#include <cstdint>
#include <vector>

#include "thalweg/scheduler/core_state.hpp"
#include "thalweg/scheduler/survival.hpp"

namespace thalweg::scheduler {

// Shortens the rows of a planned decode step to the drafts that are worth their time. Keeps its memory between steps.
class VerifyPlanner {
 public:
  // Needs a budget with a curve, and rows that verify all their drafts; sets their query lengths and the step's sum.
  void plan(CoreState& state, Step& step);

 private:
  void collect(const CoreState& state, const Step& step);
  void write(bool is_one_round);

  std::vector<StepRounds> rounds_;
  std::vector<std::int32_t> offsets_;
  std::vector<float> budget_survival_;
  std::vector<float> split_survival_;
  std::vector<std::int32_t> lengths_;
};

}  // namespace thalweg::scheduler
