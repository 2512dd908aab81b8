#include "thalweg/scheduler/step_plan.hpp"

namespace thalweg::scheduler {

StepPlan::StepPlan(const PlanShape& given) : shape(given) {
  const std::size_t rows = shape.rows;
  const std::size_t num_ids = rows + shape.num_finished + shape.num_dropped + shape.num_restarted;
  const std::size_t num_columns = 9 + shape.tail_length + shape.draft_width;
  const std::size_t num_copies = shape.num_state_copies + shape.num_block_copies;
  const std::size_t num_others =
      (rows + 1) + shape.num_blocks + shape.num_chunk_tokens + shape.num_next_tokens + 2 * num_copies;
  constexpr std::size_t num_arrays = 21;
  storage = ArrayStorage(num_ids * sizeof(std::int64_t) + (rows * num_columns + num_others) * sizeof(std::int32_t),
                         num_arrays);

  sequence_ids = storage.take<std::int64_t>(rows);
  finished_ids = storage.take<std::int64_t>(shape.num_finished);
  dropped_ids = storage.take<std::int64_t>(shape.num_dropped);
  restarted_ids = storage.take<std::int64_t>(shape.num_restarted);
  for (auto* column : {&query_lengths, &context_lengths, &committed_lengths, &prompt_lengths, &state_slots,
                       &window_valid_start, &draft_read_slots, &draft_write_slots})
    *column = storage.take<std::int32_t>(rows);
  tail_token_ids = storage.take<std::int32_t>(rows * shape.tail_length);
  draft_token_ids = storage.take<std::int32_t>(rows * shape.draft_width);
  previous_rows = storage.take<std::int32_t>(rows);
  block_offsets = storage.take<std::int32_t>(rows + 1);
  block_ids = storage.take<std::int32_t>(shape.num_blocks);
  token_ids = storage.take<std::int32_t>(shape.num_chunk_tokens);
  next_token_ids = storage.take<std::int32_t>(shape.num_next_tokens);
  state_copies = storage.take<std::int32_t>(2 * shape.num_state_copies);
  block_copies = storage.take<std::int32_t>(2 * shape.num_block_copies);
}

}  // namespace thalweg::scheduler
