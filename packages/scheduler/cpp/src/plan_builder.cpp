#include "thalweg/scheduler/plan_builder.hpp"

#include <algorithm>
#include <string>

namespace thalweg::scheduler {
namespace {

// The `count` committed tokens that end at `position`, -1 before the first.
void copy_tail(const Sequence& sequence, std::int64_t position, std::int32_t count, std::int32_t* out) {
  for (std::int64_t at = position - count + 1; at <= position; ++at)
    *out++ = at < 0 ? -1 : sequence.tokens[static_cast<std::size_t>(at)];
}

void size_arrays(const CoreState& state, const Step& step, StepPlan& plan) {
  const std::size_t rows = step.rows.size();
  const bool is_prefill = step.kind == StepKind::prefill;
  for (auto* column : {&plan.query_lengths, &plan.context_lengths, &plan.committed_lengths, &plan.prompt_lengths,
                       &plan.state_slots, &plan.window_valid_start, &plan.draft_read_slots, &plan.draft_write_slots})
    column->resize(rows);
  plan.sequence_ids.resize(rows);
  plan.block_offsets.resize(rows + 1);
  plan.tail_token_ids.resize(rows * static_cast<std::size_t>(state.options.tail_length));
  plan.previous_rows.assign(rows, -1);
  if (is_prefill) plan.next_token_ids.resize(rows);
  else plan.draft_token_ids.resize(rows * static_cast<std::size_t>(state.options.draft_length));

  std::size_t num_blocks = 0;
  for (std::size_t i = 0; i < rows; ++i) num_blocks += step.rows[i].sequence->blocks.size();
  plan.block_ids.resize(num_blocks);
}

void count_context(StepStats& stats, bool is_first, std::int32_t query_length, std::int32_t context_length) {
  stats.sum_query_times_context += static_cast<std::int64_t>(query_length) * context_length;
  stats.max_context_length = std::max(stats.max_context_length, context_length);
  stats.min_context_length = is_first ? context_length : std::min(stats.min_context_length, context_length);
}

void count_queues(const CoreState& state, StepStats& stats) {
  stats.num_running = static_cast<std::int64_t>(state.running.size());
  stats.num_waiting = static_cast<std::int64_t>(state.waiting.size());
  stats.num_chunked = static_cast<std::int64_t>(state.waiting.num_half_prefilled());
  stats.num_preempted = state.num_preempted;
  stats.num_aborted = state.num_aborted;
  stats.num_free_blocks = state.blocks.num_free();
  stats.num_free_state_slots = state.state_slots.num_free();
}

void write_prefill_columns(const Row& row, std::size_t i, StepPlan& plan) {
  const Sequence& sequence = *row.sequence;
  const auto begin = sequence.tokens.begin() + sequence.computed;
  const std::int32_t context = sequence.computed + row.query_length;
  plan.token_ids.insert(plan.token_ids.end(), begin, begin + row.query_length);
  plan.next_token_ids[i] = context < sequence.length() ? sequence.tokens[static_cast<std::size_t>(context)] : -1;
}

void write_drafts(const Sequence& sequence, std::size_t count, std::int32_t* out) {
  if (sequence.drafts.empty()) std::fill_n(out, count, -1);
  else std::copy_n(sequence.drafts.data(), count, out);
}

}  // namespace

std::vector<std::int64_t> ids_of(const std::vector<Sequence*>& sequences) {
  std::vector<std::int64_t> ids;
  ids.reserve(sequences.size());
  for (const Sequence* sequence : sequences) ids.push_back(sequence->id);
  return ids;
}

StepPlan build_plan(CoreState& state, const Step& step) {
  StepPlan plan;
  plan.step = step.number;
  plan.kind = step.kind;
  plan.num_batched_tokens = step.num_batched_tokens;
  plan.finished_ids = ids_of(step.finished);
  plan.dropped_ids = ids_of(step.dropped);
  plan.restarted_ids = ids_of(step.restarted);
  if (step.num_batched_tokens > state.options.max_num_batched_tokens)
    throw InvariantError("planned " + std::to_string(step.num_batched_tokens) + " tokens; a step may have " +
                         std::to_string(state.options.max_num_batched_tokens));

  size_arrays(state, step, plan);
  const bool is_prefill = step.kind == StepKind::prefill;
  const std::int32_t tail_length = state.options.tail_length;
  const auto draft_length = static_cast<std::size_t>(state.options.draft_length);
  std::int32_t* block_out = plan.block_ids.data();
  std::int32_t* tail_out = plan.tail_token_ids.data();
  std::int32_t block_offset = 0;
  for (std::size_t i = 0; i < step.rows.size(); ++i) {
    const Row& row = step.rows[i];
    Sequence& sequence = *row.sequence;
    const std::int32_t context = sequence.computed + row.query_length;
    const std::int32_t committed = sequence.length();
    plan.sequence_ids[i] = sequence.id;
    plan.query_lengths[i] = row.query_length;
    plan.context_lengths[i] = context;
    plan.committed_lengths[i] = committed;
    plan.prompt_lengths[i] = sequence.prompt_length;
    plan.block_offsets[i] = block_offset;
    block_out = std::copy(sequence.blocks.begin(), sequence.blocks.end(), block_out);
    block_offset += static_cast<std::int32_t>(sequence.blocks.size());
    plan.state_slots[i] = sequence.state_slot;
    plan.draft_read_slots[i] = sequence.has_draft_info ? sequence.draft_slot : 0;
    plan.draft_write_slots[i] = sequence.draft_slot;
    copy_tail(sequence, is_prefill ? sequence.computed : committed - 1, tail_length, tail_out);
    tail_out += tail_length;
    if (is_prefill) write_prefill_columns(row, i, plan);
    else write_drafts(sequence, draft_length, plan.draft_token_ids.data() + i * draft_length);
    count_context(plan.stats, i == 0, row.query_length, context);
    sequence.has_draft_info = false;
    ++sequence.schedule_count;
  }
  plan.block_offsets.back() = block_offset;
  count_queues(state, plan.stats);
  return plan;
}

}  // namespace thalweg::scheduler
