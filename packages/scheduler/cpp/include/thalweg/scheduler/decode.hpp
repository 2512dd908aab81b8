#pragma once

#include <cstdint>
#include <vector>

#include "thalweg/scheduler/core_state.hpp"
#include "thalweg/scheduler/ordering.hpp"
#include "thalweg/scheduler/verify_planner.hpp"

namespace thalweg::scheduler {

// Plans decode steps: every running sequence gets a row, preempting the longest outputs when blocks run out.
class DecodePlanner {
 public:
  // Fill `step`; afterwards state.running is its rows, in their order. in_flight: the decode step that is not processed
  // yet, nullptr when there is none.
  void plan(CoreState& state, Step& step, const Step* in_flight);

 private:
  // What planning needs to know of a running sequence, so that its record is visited once.
  struct Candidate {
    Sequence* sequence;
    std::int32_t num_outputs;
    std::int32_t length;
    std::int32_t reserved;  // tokens that need a place in the cache: length, tokens in flight and drafts
    std::int32_t num_blocks;
    std::int32_t query_length;
    std::int32_t previous_row;
  };

  void collect(CoreState& state, Step& step, std::size_t num_in_flight);
  void add(const CoreState& state, Sequence& sequence, std::int32_t previous_row);
  void admit_prompted(CoreState& state);
  void serve(CoreState& state, Step& step);
  bool find_room(CoreState& state, Step& step, Candidate& candidate, std::size_t last);
  void write_rows(CoreState& state, Step& step) const;

  DescendingSorter<Candidate> sorter_;
  std::vector<Candidate> candidates_;
  std::size_t first_ = 0;  // candidates before this one were preempted
  std::vector<Candidate> taken_;
  std::vector<Sequence*> admitted_;
  VerifyPlanner verify_planner_;
};

// Take a running sequence off the device: it is recomputed later, or ends when it cannot or must not be.
void preempt(CoreState& state, Step& step, Sequence& victim);

}  // namespace thalweg::scheduler
