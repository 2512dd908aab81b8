#pragma once

#include "thalweg/scheduler/core_state.hpp"
#include "thalweg/scheduler/step_result.hpp"

namespace thalweg::scheduler {

// Throws std::invalid_argument, before anything changed, for arrays that do not fit the rows of `step`.
void check_result(const CoreState& state, const Step& step, const StepResult& result);

// Append what was sampled, apply the stop rules, attach the next drafts, and close whoever ends without a token.
StepOutcome post_process(CoreState& state, const Step& step, const StepResult& result);

}  // namespace thalweg::scheduler
