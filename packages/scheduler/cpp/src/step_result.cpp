#include "thalweg/scheduler/step_result.hpp"

namespace thalweg::scheduler {

namespace {

constexpr std::size_t num_arrays = 11;

}  // namespace

StepOutcome::StepOutcome(const Shape& shape)
    : storage(shape.max_closed * (8 + 4 + 1) + shape.max_completed * 8 +
                  (shape.rows + 1 + shape.max_tokens + shape.rows * (3 + shape.draft_length)) * 4 + shape.rows,
              num_arrays) {
  const auto [rows, draft_length, max_tokens, max_closed, max_completed] = shape;
  closed_ids = storage.take<std::int64_t>(max_closed).first(0);
  completed_ids = storage.take<std::int64_t>(max_completed).first(0);
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
