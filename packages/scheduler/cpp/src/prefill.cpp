#include "thalweg/scheduler/prefill.hpp"

#include <algorithm>

#include "thalweg/scheduler/dropping.hpp"

namespace thalweg::scheduler {
namespace {

constexpr double watermark = 0.9;

// Whether the sequence can never start: it is too long for a prompt, or for the whole pool.
bool never_fits(const CoreState& state, const Sequence& sequence) {
  return sequence.length() > state.options.longest_prompt() ||
         state.blocks.can_allocate(state.blocks_for(sequence.length())) == Fit::never;
}

// A recomputed sequence had a good prompt: it outgrew the pool.
Status refusal(const Options& options, const Sequence& sequence) {
  const bool had_output = !options.is_reference() && sequence.num_outputs() > 0;
  return had_output ? Status::finished_preempted : Status::finished_ignored;
}

bool may_start(const CoreState& state, const Sequence& sequence) {
  return state.blocks.can_allocate(state.blocks_for(sequence.length())) == Fit::ok && state.state_slots.num_free() > 0;
}

// End the chunk at the first checkpoint inside it; one that no chunk may end at is passed over.
std::int64_t cut_at_checkpoint(const Sequence& sequence, std::int64_t length, std::int64_t least) {
  for (const std::int32_t checkpoint : sequence.checkpoints) {
    const std::int64_t cut = checkpoint - sequence.computed;
    if (least <= cut && cut <= length) return cut;
  }
  return length;
}

void drop_checkpoints(Sequence& sequence, std::int64_t up_to) {
  std::erase_if(sequence.checkpoints, [&](std::int32_t checkpoint) { return checkpoint <= up_to; });
}

// Policy reference: the checkpoint is used up even when the chunk is then refused.
std::int64_t consume_checkpoint(Sequence& sequence, std::int64_t length) {
  drop_checkpoints(sequence, sequence.computed);
  if (sequence.checkpoints.empty() || sequence.checkpoints.front() > sequence.computed + length) return length;
  const std::int64_t cut = sequence.checkpoints.front() - sequence.computed;
  sequence.checkpoints.erase(sequence.checkpoints.begin());
  return cut;
}

// Length of the chunk that `sequence` may have of the remaining budget; 0 = none now.
std::int32_t chunk_length(const Options& options, Sequence& sequence, std::int64_t num_batched_tokens) {
  const std::int64_t alignment = options.chunk_alignment;
  const std::int64_t budget = (options.max_num_batched_tokens - num_batched_tokens) / alignment * alignment;
  const std::int64_t rest = sequence.length() - sequence.computed;
  const std::int64_t least = std::max(options.lookahead_tokens, 1);
  std::int64_t length = std::min(rest, budget);

  if (options.is_reference()) length = consume_checkpoint(sequence, length);
  else if (options.chunked_prefill) length = cut_at_checkpoint(sequence, length, least);
  if (length < rest && !options.chunked_prefill) return 0;
  const bool is_last = length == rest && !options.is_reference();
  return length < least && !is_last ? 0 : static_cast<std::int32_t>(length);
}

// Own blocks for the whole prompt and a state slot; false, and nothing taken, when another thread was faster.
bool acquire(CoreState& state, Sequence& sequence) {
  if (!state.extend_blocks(sequence, state.blocks_for(sequence.length()))) return false;
  if (state.state_slots.try_allocate(std::span(&sequence.state_slot, 1))) return true;
  state.release_memory(sequence);
  return false;
}

// Make the chunk a row of the step; whether it ends its prompt, which then runs.
bool commit(CoreState& state, Step& step, Sequence& sequence, std::int32_t length) {
  const std::int64_t alignment = state.options.chunk_alignment;
  const std::int32_t end = sequence.computed + length;
  step.num_batched_tokens += (length + alignment - 1) / alignment * alignment;
  step.num_blocks += sequence.blocks.size();
  step.num_chunk_tokens += static_cast<std::size_t>(length);
  step.rows.push_back({&sequence, length});
  drop_checkpoints(sequence, end);
  if (end < sequence.length()) return false;
  sequence.status = Status::running;
  state.take_draft_slot(sequence);
  return true;
}

}  // namespace

bool wants_prefill(const CoreState& state) {
  const bool is_reference = state.options.is_reference();
  if (!is_reference && state.waiting.has_ready_holder()) return true;  // it may be why blocks are short
  const Sequence* next = is_reference ? state.waiting.head() : state.waiting.first_other();
  if (next == nullptr || !next->is_schedulable) return false;
  if (state.options.engine_type == EngineType::prompt) return true;  // nobody needs room to grow
  const double capacity = state.blocks.capacity();
  return (capacity - state.blocks.num_free()) / capacity <= watermark;
}

void plan_empty_prefill(CoreState& state, Step& step) {
  if (!state.options.is_reference()) drop_finished(state, step);
}

void plan_prefill(CoreState& state, Step& step) {
  const Options& options = state.options;
  plan_empty_prefill(state, step);

  std::int64_t context_budget = options.prefill_max_sum_context;
  std::size_t num_running = state.running.size();
  while (Sequence* sequence = state.waiting.head()) {
    if (sequence->is_finished()) {
      step.dropped.push_back(sequence);
      state.waiting.pop_head();
      continue;
    }
    if (!sequence->is_schedulable) break;
    const bool is_new = sequence->blocks.empty();
    if (is_new && never_fits(state, *sequence)) {
      state.waiting.pop_head();
      sequence->status = refusal(options, *sequence);
      step.dropped.push_back(sequence);
      continue;
    }
    if (is_new && !may_start(state, *sequence)) break;
    if (num_running + 1 > static_cast<std::size_t>(options.max_num_seqs)) break;
    if (context_budget < sequence->length()) break;
    context_budget -= sequence->length();
    const std::int32_t length = chunk_length(options, *sequence, step.num_batched_tokens);
    if (length == 0) break;

    state.waiting.pop_head();
    if (is_new && !acquire(state, *sequence)) {
      state.waiting.push_restarted(*sequence);
      break;
    }
    if (commit(state, step, *sequence, length)) ++num_running;
    else if (options.engine_type != EngineType::prompt) break;  // one half-prefilled prompt at a time
  }
}

}  // namespace thalweg::scheduler
