#include "thalweg/scheduler/plan_builder.hpp"

#include <algorithm>
#include <limits>
#include <string>

#include "thalweg/scheduler/copy_few.hpp"
#include "thalweg/scheduler/errors.hpp"
#include "thalweg/scheduler/plan_stats.hpp"
#include "thalweg/scheduler/prefetch.hpp"

namespace thalweg::scheduler {
namespace {

void copy_ids(const std::vector<Sequence*>& sequences, std::span<std::int64_t> out) {
  for (std::size_t i = 0; i < sequences.size(); ++i) out[i] = sequences[i]->id;
}

void copy_pairs(const std::vector<Copy>& copies, std::span<std::int32_t> out) {
  for (std::size_t i = 0; i < copies.size(); ++i) {
    out[2 * i] = copies[i].source;
    out[2 * i + 1] = copies[i].target;
  }
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
          .num_restarted = step.restarted.size(),
          .num_state_copies = step.copies.states.size(),
          .num_block_copies = step.copies.blocks.size()};
}

// The committed tokens that end at `position`, as many as `out` holds, -1 before the first.
void copy_tail(const TokenLog& tokens, std::int32_t position, std::span<std::int32_t> out) {
  std::int32_t at = position + 1 - static_cast<std::int32_t>(out.size());
  for (std::int32_t& token : out) {
    token = at < 0 ? -1 : tokens[at];
    ++at;
  }
}

std::string describe(const Sequence& sequence, std::int32_t query_length) {
  return "sequence " + std::to_string(sequence.id) + " of length " + std::to_string(sequence.length()) + " with " +
         std::to_string(sequence.computed) + " computed tokens, scheduled " + std::to_string(sequence.schedule_count) +
         " times, processed " + std::to_string(sequence.process_count) + " times, and query length " +
         std::to_string(query_length);
}

class PlanBuilder {
 public:
  PlanBuilder(CoreState& state, Step& step)
      : state_(state),
        step_(step),
        is_prefill_(step.kind == StepKind::prefill),
        // Where the query of a row must end (prefill) or begin (decode), so that its positions exist.
        last_position_(state.options.runtime_max_model_len() -
                       (is_prefill_ ? 0 : state.options.step_tokens() + state.options.draft_length)),
        plan_(shape_of(state, step)) {}

  StepPlan run() {
    plan_.step = step_.number;
    plan_.kind = step_.kind;
    plan_.num_batched_tokens = step_.num_batched_tokens;
    copy_ids(step_.finished, plan_.finished_ids);
    copy_ids(step_.dropped, plan_.dropped_ids);
    copy_ids(step_.restarted, plan_.restarted_ids);
    copy_pairs(step_.copies.states, plan_.state_copies);
    copy_pairs(step_.copies.blocks, plan_.block_copies);
    std::fill(plan_.window_valid_start.begin(), plan_.window_valid_start.end(), 0);
    for (std::size_t i = 0; i < step_.rows.size(); ++i) {
      if (i + record_distance < step_.rows.size()) prefetch_record(step_.rows[i + record_distance].sequence);
      write_row(i, step_.rows[i]);
    }
    plan_.block_offsets.back() = block_offset_;
    count_rows();
    count(state_, step_, plan_);
    return std::move(plan_);
  }

 private:
  void write_row(std::size_t i, Row& row) {
    Sequence& sequence = *row.sequence;
    const std::int32_t query_length = row.query_length;
    const std::int32_t start = sequence.computed + state_.tokens_in_flight(sequence);
    const std::int32_t context = start + query_length;
    check_row(sequence, query_length, is_prefill_ ? context : start);
    row.read_slot = sequence.has_draft_info ? sequence.draft_slot : 0;
    row.write_slot = sequence.draft_slot;
    const std::int32_t committed = sequence.length();
    plan_.sequence_ids[i] = sequence.id;
    plan_.query_lengths[i] = query_length;
    plan_.context_lengths[i] = context;
    plan_.committed_lengths[i] = committed;
    plan_.prompt_lengths[i] = sequence.prompt_length;
    plan_.state_slots[i] = sequence.state_slot;
    plan_.draft_read_slots[i] = row.read_slot;
    plan_.draft_write_slots[i] = row.write_slot;
    plan_.previous_rows[i] = row.previous_row;
    plan_.block_offsets[i] = block_offset_;
    copy_few(sequence.blocks.data(), sequence.blocks.size(), plan_.block_ids.data() + block_offset_);
    block_offset_ += static_cast<std::int32_t>(sequence.blocks.size());
    const std::size_t tail_length = plan_.shape.tail_length;
    copy_tail(sequence.tokens, is_prefill_ ? start : committed - 1,
              plan_.tail_token_ids.subspan(i * tail_length, tail_length));
    if (is_prefill_) write_chunk(i, sequence, query_length);
    else write_drafts(i, sequence);
    count_row(sequence, query_length, context);
    sequence.has_draft_info = false;
    ++sequence.schedule_count;
  }

  void check_row(const Sequence& sequence, std::int32_t query_length, std::int32_t position) const {
    const std::uint32_t num_in_flight = sequence.schedule_count - sequence.process_count;
    if (num_in_flight <= 1 && position <= last_position_) [[likely]] return;
    throw InvariantError(describe(sequence, query_length) +
                         (num_in_flight > 1 ? " has more than one unprocessed step"
                                            : " leaves the " + std::to_string(state_.options.runtime_max_model_len()) +
                                                  " positions that buffers have"));
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
    else copy_few(state_.drafts.at(sequence.draft_slot).tokens().data(), width, out);
  }

  void count_row(const Sequence& sequence, std::int32_t query_length, std::int32_t context) {
    sum_prompts_ += sequence.prompt_length;
    sum_products_ += std::int64_t{query_length} * context;
    longest_ = std::max(longest_, context);
    shortest_ = std::min(shortest_, context);
  }

  void count_rows() {
    StepStats& stats = plan_.stats;
    stats.sum_query_times_context = sum_products_;
    stats.max_context_length = longest_;
    stats.min_context_length = std::min(shortest_, longest_);
    if (!is_prefill_) stats.prompt_tokens_running = sum_prompts_;  // the rows of a decode step are whoever runs
  }

  CoreState& state_;
  Step& step_;
  const bool is_prefill_;
  const std::int64_t last_position_;
  StepPlan plan_;
  std::int32_t block_offset_ = 0;
  std::int32_t chunk_offset_ = 0;
  std::int64_t sum_prompts_ = 0;
  std::int64_t sum_products_ = 0;  // of query length and context
  std::int32_t longest_ = 0;       // contexts
  std::int32_t shortest_ = std::numeric_limits<std::int32_t>::max();
};

}  // namespace

StepPlan build_plan(CoreState& state, Step& step) {
  if (step.num_batched_tokens > state.options.max_num_batched_tokens)
    throw InvariantError("planned " + std::to_string(step.num_batched_tokens) + " tokens; a step may have " +
                         std::to_string(state.options.max_num_batched_tokens));
  return PlanBuilder(state, step).run();
}

}  // namespace thalweg::scheduler
