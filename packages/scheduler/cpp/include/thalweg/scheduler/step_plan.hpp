#pragma once

#include <cstdint>
#include <span>

#include "thalweg/scheduler/array_storage.hpp"

namespace thalweg::scheduler {

// Values of thalweg.interfaces.StepKind.
enum class StepKind : int { prefill = 0, decode = 1 };

struct StepStats {
  std::int64_t sum_query_times_context = 0;
  std::int32_t max_context_length = 0;
  std::int32_t min_context_length = 0;
  double attention_flops = 0;
  double total_flops = 0;
  std::int64_t num_running = 0;
  std::int64_t num_waiting = 0;
  std::int64_t num_chunked = 0;
  std::int64_t num_preempted = 0;
  std::int64_t num_aborted = 0;
  std::int64_t num_free_blocks = 0;
  std::int64_t num_free_state_slots = 0;
  std::int64_t num_prompted = 0;
  std::int64_t prompt_tokens_running = 0;
  std::int64_t prompt_tokens_waiting = 0;
  std::int64_t prompt_tokens_chunked = 0;
  std::int64_t num_finished = 0;
  std::int64_t finished_output_tokens = 0;
  std::int64_t finished_prompt_tokens = 0;
  std::int64_t finished_output_context = 0;
};

// How many elements the arrays of a plan have.
struct PlanShape {
  std::size_t rows = 0;
  std::size_t tail_length = 1;
  std::size_t draft_width = 0;  // draft columns: 0 in prefill
  std::size_t num_blocks = 0;
  std::size_t num_chunk_tokens = 0;  // prefill only
  std::size_t num_next_tokens = 0;   // rows in prefill, 0 in decode
  std::size_t num_finished = 0;
  std::size_t num_dropped = 0;
  std::size_t num_restarted = 0;
  std::size_t num_state_copies = 0;
  std::size_t num_block_copies = 0;
};

// The fields of thalweg.interfaces.StepPlan that this scheduler fills: same names, same shapes, row-major, owned by the
// plan. There is never a state slot to clear.
struct StepPlan {
  StepPlan() = default;
  explicit StepPlan(const PlanShape& shape);

  std::int64_t step = 0;
  StepKind kind = StepKind::decode;
  std::int64_t num_batched_tokens = 0;
  PlanShape shape;
  ArrayStorage storage;
  std::span<std::int64_t> sequence_ids;
  std::span<std::int64_t> finished_ids;
  std::span<std::int64_t> dropped_ids;
  std::span<std::int64_t> restarted_ids;
  std::span<std::int32_t> query_lengths;
  std::span<std::int32_t> context_lengths;
  std::span<std::int32_t> committed_lengths;
  std::span<std::int32_t> prompt_lengths;
  std::span<std::int32_t> block_offsets;
  std::span<std::int32_t> block_ids;
  std::span<std::int32_t> state_slots;
  std::span<std::int32_t> window_valid_start;
  std::span<std::int32_t> tail_token_ids;
  std::span<std::int32_t> token_ids;
  std::span<std::int32_t> next_token_ids;
  std::span<std::int32_t> draft_token_ids;
  std::span<std::int32_t> draft_read_slots;
  std::span<std::int32_t> draft_write_slots;
  std::span<std::int32_t> previous_rows;
  std::span<std::int32_t> state_copies;
  std::span<std::int32_t> block_copies;
  StepStats stats;
};

}  // namespace thalweg::scheduler
