#include "thalweg/scheduler/decode.hpp"

#include <span>
#include <string>

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

void DecodePlanner::plan(CoreState& state, Step& step) {
  collect(state, step);
  sorter_.sort(candidates_, [](const Candidate& candidate) { return candidate.num_outputs; });
  admit(state, step);
  sorter_.sort(taken_, [](const Candidate& candidate) { return candidate.length; });
  write_rows(state, step);
}

// Visit everybody once; finished sequences leave.
void DecodePlanner::collect(CoreState& state, Step& step) {
  candidates_.clear();
  const std::vector<Sequence*>& running = state.running;
  for (std::size_t i = 0; i < running.size(); ++i) {
    if (i + record_distance < running.size()) prefetch_record(running[i + record_distance]);
    Sequence& sequence = *running[i];
    if (sequence.is_finished()) {
      state.draft_slots.release(sequence.draft_slot);
      step.finished.push_back(&sequence);
      continue;
    }
    const std::int32_t length = sequence.length();
    candidates_.push_back({&sequence, length - sequence.prompt_length, length, length + sequence.num_drafts,
                           static_cast<std::int32_t>(sequence.blocks.size())});
  }
  state.num_finished_running = 0;
  state.waiting.take_finished(step.dropped);
}

// Shortest output first, so that the longest ones are the victims when blocks run out.
void DecodePlanner::admit(CoreState& state, Step& step) {
  taken_.clear();
  first_ = 0;
  for (std::size_t last = candidates_.size(); first_ < last; --last) {
    Candidate& candidate = candidates_[last - 1];
    if (find_room(state, step, candidate, last)) taken_.push_back(candidate);
  }
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

void DecodePlanner::write_rows(CoreState& state, Step& step) const {
  state.running.resize(taken_.size());
  step.rows.resize(taken_.size());
  for (std::size_t i = 0; i < taken_.size(); ++i) {
    const Candidate& candidate = taken_[i];
    const std::int32_t query_length = 1 + candidate.reserved - candidate.length;
    state.running[i] = candidate.sequence;
    step.rows[i] = {candidate.sequence, query_length};
    step.num_batched_tokens += query_length;
    step.num_blocks += static_cast<std::size_t>(candidate.num_blocks);
  }
}

}  // namespace thalweg::scheduler
