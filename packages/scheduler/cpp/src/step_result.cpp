#include "thalweg/scheduler/step_result.hpp"

namespace thalweg::scheduler {

StepOutcome::StepOutcome(std::size_t rows, std::size_t draft_length, std::size_t max_tokens, std::size_t max_closed)
    : storage(max_closed * (8 + 4 + 1) + (rows + 1 + max_tokens + rows * (3 + draft_length)) * 4 + rows) {
  closed_ids = storage.take<std::int64_t>(max_closed).first(0);
  token_offsets = storage.take<std::int32_t>(rows + 1);
  token_ids = storage.take<std::int32_t>(max_tokens).first(0);
  num_output_tokens = storage.take<std::int32_t>(rows);
  num_verified = storage.take<std::int32_t>(rows);
  num_accepted = storage.take<std::int32_t>(rows);
  closed_num_output_tokens = storage.take<std::int32_t>(max_closed).first(0);
  verified_confidences = storage.take<float>(rows * draft_length);
  finish_reasons = storage.take<std::int8_t>(rows);
  closed_reasons = storage.take<std::int8_t>(max_closed).first(0);
}

}  // namespace thalweg::scheduler
