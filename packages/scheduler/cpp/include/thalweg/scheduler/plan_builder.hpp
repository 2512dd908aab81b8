#pragma once

#include "thalweg/scheduler/core_state.hpp"
#include "thalweg/scheduler/step_plan.hpp"

namespace thalweg::scheduler {

// Write down what the rows of `step` compute, as arrays of their own, and count the step as scheduled for each of them.
StepPlan build_plan(CoreState& state, Step& step);

}  // namespace thalweg::scheduler
