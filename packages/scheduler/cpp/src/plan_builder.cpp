#include "thalweg/scheduler/plan_builder.hpp"

#include <algorithm>
#include <numeric>
#include <string>

#include "thalweg/scheduler/copy_few.hpp"
#include "thalweg/scheduler/prefetch.hpp"

namespace thalweg::scheduler {
namespace {

void copy_ids(const std::vector<Sequence*>& sequences, std::span<std::int64_t> out) {
  for (std::size_t i = 0; i < sequences.size(); ++i) out[i] = sequences[i]->id;
}

PlanShape shape_of(const CoreState& state, const Step& step) {
  const bool is_prefill = step.kind == StepKind::prefill;
  return {.rows = step.rows.size(),
          .tail_length = static_cast<std::size_t>(state.options.tail_length),
          .draft_width = is_prefill ? 0 : state.drafts.length(),
          .num_blocks = step.num_blocks,
          .num_chunk_tokens = step.num_chunk_tokens,
          .num_next_tokens = is_prefill ? step.rows.size() : 0,
          .num_finished = step.finished.size(),
          .num_dropped = step.dropped.size(),
          .num_restarted = step.restarted.size()};
}

// The committed tokens that end at `position`, as many as `out` holds, -1 before the first.
void copy_tail(const TokenLog& tokens, std::int32_t position, std::span<std::int32_t> out) {
  std::int32_t at = position + 1 - static_cast<std::int32_t>(out.size());
  for (std::int32_t& token : out) {
    token = at < 0 ? -1 : tokens[at];
    ++at;
  }
}

void count_queues(const CoreState& state, StepStats& stats) {
  stats.num_running = static_cast<std::int64_t>(state.running.size());
  stats.num_waiting = static_cast<std::int64_t>(state.waiting.size());
  stats.num_chunked = static_cast<std::int64_t>(state.waiting.num_half_prefilled());
  stats.num_preempted = state.num_preempted;
  stats.num_aborted = state.num_aborted;
  stats.num_free_blocks = state.blocks.num_free();
  stats.num_free_state_slots = state.state_slots.num_free();
  stats.prompt_tokens_waiting = state.waiting.prompt_tokens();
  stats.prompt_tokens_chunked = state.waiting.prompt_tokens_half_prefilled();
}

std::int64_t sum_prompts(const std::vector<Sequence*>& sequences) {
  std::int64_t sum = 0;
  for (const Sequence* sequence : sequences) sum += sequence->prompt_length;
  return sum;
}

void count_finished(const Step& step, StepStats& stats) {
  stats.num_finished = static_cast<std::int64_t>(step.finished.size());
  stats.finished_prompt_tokens = sum_prompts(step.finished);
  for (const Sequence* sequence : step.finished) {
    const std::int64_t num_outputs = sequence->num_outputs();
    stats.finished_output_tokens += num_outputs;
    stats.finished_output_context += num_outputs * (num_outputs / 2 + sequence->prompt_length);
  }
}

class PlanBuilder {
 public:
  PlanBuilder(CoreState& state, const Step& step)
      : state_(state), step_(step), is_prefill_(step.kind == StepKind::prefill), plan_(shape_of(state, step)) {}

  StepPlan run() {
    plan_.step = step_.number;
    plan_.kind = step_.kind;
    plan_.num_batched_tokens = step_.num_batched_tokens;
    copy_ids(step_.finished, plan_.finished_ids);
    copy_ids(step_.dropped, plan_.dropped_ids);
    copy_ids(step_.restarted, plan_.restarted_ids);
    std::fill(plan_.window_valid_start.begin(), plan_.window_valid_start.end(), 0);
    std::fill(plan_.previous_rows.begin(), plan_.previous_rows.end(), -1);
    for (std::size_t i = 0; i < step_.rows.size(); ++i) {
      if (i + record_distance < step_.rows.size()) prefetch_record(step_.rows[i + record_distance].sequence);
      write_row(i, *step_.rows[i].sequence, step_.rows[i].query_length);
    }
    plan_.block_offsets.back() = block_offset_;
    count_queues(state_, plan_.stats);
    count_finished(step_, plan_.stats);
    // The rows of a decode step are whoever runs; adding up what was just written touches no record.
    plan_.stats.prompt_tokens_running =
        is_prefill_ ? sum_prompts(state_.running)
                    : std::accumulate(plan_.prompt_lengths.begin(), plan_.prompt_lengths.end(), std::int64_t{0});
    return std::move(plan_);
  }

 private:
  void write_row(std::size_t i, Sequence& sequence, std::int32_t query_length) {
    const std::int32_t context = sequence.computed + query_length;
    const std::int32_t committed = sequence.length();
    plan_.sequence_ids[i] = sequence.id;
    plan_.query_lengths[i] = query_length;
    plan_.context_lengths[i] = context;
    plan_.committed_lengths[i] = committed;
    plan_.prompt_lengths[i] = sequence.prompt_length;
    plan_.state_slots[i] = sequence.state_slot;
    plan_.draft_read_slots[i] = sequence.has_draft_info ? sequence.draft_slot : 0;
    plan_.draft_write_slots[i] = sequence.draft_slot;
    plan_.block_offsets[i] = block_offset_;
    std::copy(sequence.blocks.begin(), sequence.blocks.end(), plan_.block_ids.data() + block_offset_);
    block_offset_ += static_cast<std::int32_t>(sequence.blocks.size());
    const std::size_t tail_length = plan_.shape.tail_length;
    copy_tail(sequence.tokens, is_prefill_ ? sequence.computed : committed - 1,
              plan_.tail_token_ids.subspan(i * tail_length, tail_length));
    if (is_prefill_) write_chunk(i, sequence, query_length);
    else write_drafts(i, sequence);
    count_context(i, query_length, context);
    sequence.has_draft_info = false;
    ++sequence.schedule_count;
  }

  void write_chunk(std::size_t i, const Sequence& sequence, std::int32_t query_length) {
    sequence.tokens.copy(sequence.computed, query_length, plan_.token_ids.data() + chunk_offset_);
    chunk_offset_ += query_length;
    const std::int32_t context = sequence.computed + query_length;
    plan_.next_token_ids[i] = context < sequence.length() ? sequence.tokens[context] : -1;
  }

  void write_drafts(std::size_t i, const Sequence& sequence) {
    const std::size_t width = plan_.shape.draft_width;
    std::int32_t* const out = plan_.draft_token_ids.data() + i * width;
    if (sequence.num_drafts == 0) std::fill_n(out, width, -1);
    else copy_few(state_.drafts.tokens(sequence.draft_slot).data(), width, out);
  }

  void count_context(std::size_t i, std::int32_t query_length, std::int32_t context) {
    StepStats& stats = plan_.stats;
    stats.sum_query_times_context += static_cast<std::int64_t>(query_length) * context;
    stats.max_context_length = std::max(stats.max_context_length, context);
    stats.min_context_length = i == 0 ? context : std::min(stats.min_context_length, context);
  }

  CoreState& state_;
  const Step& step_;
  const bool is_prefill_;
  StepPlan plan_;
  std::int32_t block_offset_ = 0;
  std::int32_t chunk_offset_ = 0;
};

}  // namespace

StepPlan build_plan(CoreState& state, const Step& step) {
  if (step.num_batched_tokens > state.options.max_num_batched_tokens)
    throw InvariantError("planned " + std::to_string(step.num_batched_tokens) + " tokens; a step may have " +
                         std::to_string(state.options.max_num_batched_tokens));
  return PlanBuilder(state, step).run();
}

}  // namespace thalweg::scheduler
