#pragma once

#include <cstdint>
#include <vector>

#include "thalweg/scheduler/core_state.hpp"
#include "thalweg/scheduler/ordering.hpp"
#include "thalweg/scheduler/row_order.hpp"
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
    std::int32_t prompt_length;
    std::int32_t length;
    std::int32_t reserved;  // tokens that need a place in the cache: length, tokens in flight and drafts
    std::int32_t num_blocks;
    std::int32_t query_length;
    std::int32_t previous_row;

    std::int32_t num_outputs() const noexcept { return length - prompt_length; }
  };

  void collect(CoreState& state, Step& step, std::size_t num_in_flight);
  void add(const CoreState& state, Sequence& sequence, std::int32_t previous_row);
  void admit_prompted(CoreState& state);

  // The usual case: there are blocks for everybody. False, with nobody preempted, when there are not.
  bool fit_everybody(CoreState& state);
  bool fit(CoreState& state, Candidate& candidate) const;

  // The other case, from the start or from where `fit_everybody` gave up.
  void serve(CoreState& state, Step& step);
  bool find_room(CoreState& state, Step& step, Candidate& candidate, std::size_t last);

  void write_rows(CoreState& state, Step& step);

  DescendingSorter<Candidate> sorter_;
  RowOrder order_;
  std::vector<Candidate> candidates_;    // in the order of `running`
  std::vector<std::uint32_t> changing_;  // indices of those whose block tables have to grow or shrink
  std::size_t first_ = 0;                // candidates before this one were preempted
  std::vector<Candidate> taken_;
  std::vector<Sequence*> admitted_;
  VerifyPlanner verify_planner_;
};

// Take a running sequence off the device: it is recomputed later, or ends when it cannot or must not be.
void preempt(CoreState& state, Step& step, Sequence& victim);

}  // namespace thalweg::scheduler
