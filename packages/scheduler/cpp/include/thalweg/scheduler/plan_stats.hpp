#pragma once

#include "thalweg/scheduler/core_state.hpp"
#include "thalweg/scheduler/step_plan.hpp"

namespace thalweg::scheduler {

// Fill the statistics of a plan whose rows are written, except those about their contexts and about the prompts of the
// rows of a decode step. The cost does not depend on how many sequences wait.
void count(const CoreState& state, const Step& step, StepPlan& plan);

}  // namespace thalweg::scheduler
