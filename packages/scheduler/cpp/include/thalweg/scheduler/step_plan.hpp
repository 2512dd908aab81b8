#pragma once

#include <cstdint>
#include <vector>

namespace thalweg::scheduler {

// Values of thalweg.interfaces.StepKind.
enum class StepKind : int { prefill = 0, decode = 1 };

struct StepStats {
  std::int64_t sum_query_times_context = 0;
  std::int32_t max_context_length = 0;
  std::int32_t min_context_length = 0;
  std::int64_t num_running = 0;
  std::int64_t num_waiting = 0;
  std::int64_t num_chunked = 0;
  std::int64_t num_preempted = 0;
  std::int64_t num_aborted = 0;
  std::int64_t num_free_blocks = 0;
  std::int64_t num_free_state_slots = 0;
};

// The fields of thalweg.interfaces.StepPlan that this scheduler fills, same names, same shapes (row-major).
// The others are constant here: no copies, nothing to clear, no step in flight.
struct StepPlan {
  std::int64_t step = 0;
  StepKind kind = StepKind::decode;
  std::int64_t num_batched_tokens = 0;
  std::vector<std::int64_t> sequence_ids;
  std::vector<std::int32_t> query_lengths;
  std::vector<std::int32_t> context_lengths;
  std::vector<std::int32_t> committed_lengths;
  std::vector<std::int32_t> prompt_lengths;
  std::vector<std::int32_t> block_offsets;
  std::vector<std::int32_t> block_ids;
  std::vector<std::int32_t> state_slots;
  std::vector<std::int32_t> window_valid_start;
  std::vector<std::int32_t> tail_token_ids;
  std::vector<std::int32_t> token_ids;
  std::vector<std::int32_t> next_token_ids;
  std::vector<std::int32_t> draft_token_ids;
  std::vector<std::int32_t> draft_read_slots;
  std::vector<std::int32_t> draft_write_slots;
  std::vector<std::int32_t> previous_rows;
  std::vector<std::int64_t> finished_ids;
  std::vector<std::int64_t> dropped_ids;
  std::vector<std::int64_t> restarted_ids;
  StepStats stats;
};

}  // namespace thalweg::scheduler
