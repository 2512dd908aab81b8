#include "thalweg/scheduler/decode.hpp"

#include <algorithm>
#include <span>
#include <string>

#include "thalweg/scheduler/dropping.hpp"
#include "thalweg/scheduler/prefetch.hpp"

namespace thalweg::scheduler {
namespace {

// Blocks to add for `reserved` tokens, or to give back.
std::int64_t missing_blocks(const CoreState& state, std::int64_t reserved, std::int64_t owned) {
  const std::int64_t room = owned * state.options.block_size;
  // The common case, told without a division.
  if (reserved <= room && reserved > room - state.options.block_size) return 0;
  return state.blocks_for(reserved) - owned;
}

void release_surplus(CoreState& state, Sequence& sequence, std::int64_t surplus) {
  const std::size_t kept = sequence.blocks.size() - static_cast<std::size_t>(surplus);
  state.blocks.release(std::span(sequence.blocks).subspan(kept));
  sequence.blocks.resize(kept);
}

void end_preempted(CoreState& state, Step& step, Sequence& victim) {
  victim.status = Status::finished_preempted;
  step.dropped.push_back(&victim);
  state.release_everything(victim);
  ++state.num_preempted;
}

void check_draft_slots(const CoreState& state) {
  const std::size_t expected = state.options.draft_length > 0 ? state.running.size() : 0;
  const auto in_use = static_cast<std::size_t>(state.draft_slots.num_in_use());
  if (in_use != expected)
    throw InvariantError(std::to_string(in_use) + " draft slots are in use; " + std::to_string(expected) +
                         " sequences need one");
}

}  // namespace

void preempt(CoreState& state, Step& step, Sequence& victim) {
  if (state.options.stop_preempted_request || victim.structured_status != 0) {
    end_preempted(state, step, victim);
    return;
  }
  victim.restart();
  step.restarted.push_back(&victim);
  state.release_everything(victim);
  state.waiting.push_restarted(victim);
  ++state.num_preempted;
}

void DecodePlanner::plan(CoreState& state, Step& step, const Step* in_flight) {
  collect(state, step, in_flight == nullptr ? 0 : in_flight->rows.size());
  if (!state.prompted.empty()) admit_prompted(state);
  if (!fit_everybody(state)) serve(state, step);
  write_rows(state, step);
  if (state.verify_budget.has_curve()) verify_planner_.plan(state, step);
  check_draft_slots(state);
}

// Visit everybody once; finished sequences leave. `running` begins with the rows of the step in flight, in their order.
void DecodePlanner::collect(CoreState& state, Step& step, std::size_t num_in_flight) {
  candidates_.clear();
  changing_.clear();
  const std::vector<Sequence*>& running = state.running;
  for (std::size_t i = 0; i < running.size(); ++i) {
    if (i + record_distance < running.size()) prefetch_record(running[i + record_distance]);
    Sequence& sequence = *running[i];
    if (sequence.is_finished()) {
      state.draft_slots.release(sequence.draft_slot);
      step.finished.push_back(&sequence);
      continue;
    }
    add(state, sequence, i < num_in_flight ? static_cast<std::int32_t>(i) : -1);
  }
  state.num_finished_running = 0;
  drop_finished(state, step);
}

void DecodePlanner::add(const CoreState& state, Sequence& sequence, std::int32_t previous_row) {
  const std::int32_t length = sequence.length();
  const std::int32_t reserved = length + state.tokens_in_flight(sequence) + sequence.num_drafts;
  const auto num_blocks = static_cast<std::int32_t>(sequence.blocks.size());
  if (missing_blocks(state, reserved, num_blocks) != 0)
    changing_.push_back(static_cast<std::uint32_t>(candidates_.size()));
  candidates_.push_back({.sequence = &sequence,
                         .prompt_length = sequence.prompt_length,
                         .length = length,
                         .reserved = reserved,
                         .num_blocks = num_blocks,
                         .query_length = 1 + sequence.num_drafts,
                         .previous_row = previous_row});
}

// Fill the batch up with sequences that come ready to decode; no drafter has seen them.
void DecodePlanner::admit_prompted(CoreState& state) {
  admitted_.clear();
  const auto max_num_seqs = static_cast<std::size_t>(state.options.max_num_seqs);
  state.prompted.take_schedulable(max_num_seqs - std::min(candidates_.size(), max_num_seqs), admitted_);
  for (Sequence* sequence : admitted_) {
    sequence->status = Status::running;
    state.take_draft_slot(*sequence);
    state.attach_padding(*sequence);
    add(state, *sequence, -1);
  }
}

// Visits only the sequences whose block tables change, in the order of `serve`: shortest output first.
bool DecodePlanner::fit_everybody(CoreState& state) {
  if (state.options.is_reference()) return false;
  std::sort(changing_.begin(), changing_.end(), [&](std::uint32_t a, std::uint32_t b) {
    const std::int32_t left = candidates_[a].num_outputs();
    const std::int32_t right = candidates_[b].num_outputs();
    return left < right || (left == right && a > b);
  });
  return std::all_of(changing_.begin(), changing_.end(),
                     [&](std::uint32_t index) { return fit(state, candidates_[index]); });
}

bool DecodePlanner::fit(CoreState& state, Candidate& candidate) const {
  const std::int64_t missing = missing_blocks(state, candidate.reserved, candidate.num_blocks);
  if (missing > 1 || candidate.num_blocks + missing >= state.blocks.capacity()) return false;
  if (missing > 0 && !state.extend_blocks(*candidate.sequence, missing)) return false;
  if (missing < 0) release_surplus(state, *candidate.sequence, -missing);
  candidate.num_blocks += static_cast<std::int32_t>(missing);
  return true;
}

// Shortest output first, so that the longest ones are the victims when blocks run out.
void DecodePlanner::serve(CoreState& state, Step& step) {
  sorter_.sort(candidates_, [](const Candidate& candidate) { return candidate.num_outputs(); });
  taken_.clear();
  first_ = 0;
  for (std::size_t last = candidates_.size(); first_ < last; --last) {
    Candidate& candidate = candidates_[last - 1];
    if (find_room(state, step, candidate, last)) taken_.push_back(candidate);
  }
  // Back into the order in which nobody would have been preempted: `write_rows` expects the later of equals first.
  std::reverse(taken_.begin(), taken_.end());
  candidates_.swap(taken_);
}

// Make the candidate's block table fit, at the cost of the candidates before it if need be; false when it is out.
bool DecodePlanner::find_room(CoreState& state, Step& step, Candidate& candidate, std::size_t last) {
  const bool is_reference = state.options.is_reference();
  const std::int64_t missing = missing_blocks(state, candidate.reserved, candidate.num_blocks);
  if (missing == 0 && !is_reference) return true;

  Sequence& sequence = *candidate.sequence;
  if (missing > 1)
    throw InvariantError("sequence " + std::to_string(sequence.id) + " lacks " + std::to_string(missing) +
                         " blocks; one per step is possible");
  if (!is_reference && candidate.num_blocks + missing >= state.blocks.capacity()) {
    end_preempted(state, step, sequence);  // it can never fit, so nobody is evicted for it
    return false;
  }
  const auto has_room = [&] {
    if (missing > 0) return state.extend_blocks(sequence, missing);
    return !is_reference || state.blocks.num_free() > 0;
  };
  bool fits = has_room();
  for (; !fits && first_ + 1 < last; fits = has_room()) preempt(state, step, *candidates_[first_++].sequence);
  if (!fits) {
    preempt(state, step, sequence);
    return false;
  }
  if (missing < 0) release_surplus(state, sequence, -missing);
  candidate.num_blocks += static_cast<std::int32_t>(missing);
  return true;
}

// Longest first, of equals the shorter output, of those who are still equal the later one.
void DecodePlanner::write_rows(CoreState& state, Step& step) {
  const auto order = order_.sort(
      candidates_.size(), [&](std::size_t i) { return candidates_[i].length; },
      [&](std::size_t i) { return candidates_[i].prompt_length; });
  state.running.resize(order.size());
  step.rows.resize(order.size());
  for (std::size_t i = 0; i < order.size(); ++i) {
    const Candidate& candidate = candidates_[order[i]];
    state.running[i] = candidate.sequence;
    step.rows[i] = {candidate.sequence, candidate.query_length, candidate.previous_row};
    step.num_batched_tokens += candidate.query_length;
    step.num_blocks += static_cast<std::size_t>(candidate.num_blocks);
  }
}

}  // namespace thalweg::scheduler
