#pragma once

#include "thalweg/scheduler/core_state.hpp"

namespace thalweg::scheduler {

// Whether this rank has a prefill to run, memory permitting.
bool wants_prefill(const CoreState& state);

// A step without rows still lists who was aborted meanwhile.
void plan_empty_prefill(CoreState& state, Step& step);

// Fill `step` with prompts and prompt chunks from the head of the waiting queues, and with what had to be dropped.
void plan_prefill(CoreState& state, Step& step);

}  // namespace thalweg::scheduler
