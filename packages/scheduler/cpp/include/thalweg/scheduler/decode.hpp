#pragma once

#include <cstdint>
#include <vector>

#include "thalweg/scheduler/core_state.hpp"
#include "thalweg/scheduler/ordering.hpp"

namespace thalweg::scheduler {

// Plans decode steps: every running sequence gets a row, preempting the longest outputs when blocks run out.
class DecodePlanner {
 public:
  // Fill `step`; afterwards state.running is its rows, in their order.
  void plan(CoreState& state, Step& step);

 private:
  void remove_finished(CoreState& state, Step& step);
  void admit(CoreState& state, Step& step);
  bool has_room(CoreState& state, Sequence& candidate, std::int64_t missing) const;

  DescendingSorter<Sequence*> sorter_;
  std::vector<Sequence*> taken_;
};

// Take a running sequence off the device: it is recomputed later, or ends when it cannot or must not be.
void preempt(CoreState& state, Step& step, Sequence& victim);

}  // namespace thalweg::scheduler
