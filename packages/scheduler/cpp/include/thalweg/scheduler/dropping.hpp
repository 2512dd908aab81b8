#pragma once

#include "thalweg/scheduler/core_state.hpp"

namespace thalweg::scheduler {

// Whoever ended before it could run leaves its queue with this step, and gives back what it still owns.
//
// A prefill-only engine has no decode steps that clean up `running`, and must not hand over who was aborted there.
inline void drop_finished(CoreState& state, Step& step) {
  const std::size_t num_before = step.dropped.size();
  state.waiting.take_finished(step.dropped);
  // The traced system forgot the memory of those.
  const std::size_t first_to_free = state.options.is_reference() ? step.dropped.size() : num_before;
  state.prompted.take_finished(step.dropped);
  if (state.options.engine_type == EngineType::prompt && state.num_finished_running > 0) {
    std::erase_if(state.running, [&](Sequence* sequence) {
      if (sequence->is_finished()) step.dropped.push_back(sequence);
      return sequence->is_finished();
    });
    state.num_finished_running = 0;
  }
  for (std::size_t i = first_to_free; i < step.dropped.size(); ++i) state.release_unless_held(*step.dropped[i]);
}

}  // namespace thalweg::scheduler
