#include "thalweg/scheduler/decode.hpp"

#include <span>
#include <string>

namespace thalweg::scheduler {
namespace {

std::int64_t missing_blocks(const CoreState& state, const Sequence& sequence) {
  const auto owned = static_cast<std::int64_t>(sequence.blocks.size());
  const std::int64_t room = owned * state.options.block_size;
  const std::int64_t reserved = sequence.reserved_tokens();
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
  remove_finished(state, step);
  sorter_.sort(state.running, [](const Sequence* sequence) { return sequence->num_outputs(); });
  admit(state, step);
  sorter_.sort(taken_, [](const Sequence* sequence) { return sequence->length(); });
  state.running.swap(taken_);
  step.rows.reserve(state.running.size());
  for (Sequence* sequence : state.running) {
    const std::int32_t query_length = 1 + sequence->num_drafts();
    step.rows.push_back({sequence, query_length});
    step.num_batched_tokens += query_length;
  }
}

void DecodePlanner::remove_finished(CoreState& state, Step& step) {
  std::erase_if(state.running, [&](Sequence* sequence) {
    if (!sequence->is_finished()) return false;
    state.draft_slots.release(sequence->draft_slot);
    step.finished.push_back(sequence);
    return true;
  });
  state.num_finished_running = 0;
  state.waiting.take_finished(step.dropped);
}

// Shortest output first, so that the longest ones are the victims when blocks run out.
void DecodePlanner::admit(CoreState& state, Step& step) {
  taken_.clear();
  std::size_t first = 0;
  std::size_t last = state.running.size();
  for (; first < last; --last) {
    Sequence& candidate = *state.running[last - 1];
    const std::int64_t missing = missing_blocks(state, candidate);
    if (missing > 1)
      throw InvariantError("sequence " + std::to_string(candidate.id) + " lacks " + std::to_string(missing) +
                           " blocks; a decode step may add one");
    const auto needed = static_cast<std::int64_t>(candidate.blocks.size()) + missing;
    if (!state.options.is_reference() && needed >= state.blocks.capacity()) {
      end_preempted(state, step, candidate);  // it can never fit, so nobody is evicted for it
      continue;
    }
    bool fits = has_room(state, candidate, missing);
    for (; !fits && last - first > 1; fits = has_room(state, candidate, missing))
      preempt(state, step, *state.running[first++]);
    if (!fits) {
      preempt(state, step, candidate);
      continue;
    }
    if (missing < 0) release_surplus(state, candidate, -missing);
    taken_.push_back(&candidate);
  }
}

// Whether the candidate can be planned now; takes the block that it is missing.
bool DecodePlanner::has_room(CoreState& state, Sequence& candidate, std::int64_t missing) const {
  if (missing > 0) return state.blocks.try_allocate(1, candidate.blocks);
  return !state.options.is_reference() || state.blocks.num_free() > 0;
}

}  // namespace thalweg::scheduler
