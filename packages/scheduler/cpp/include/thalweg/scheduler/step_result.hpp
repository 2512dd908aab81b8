#pragma once

#include <cstdint>
#include <span>

#include "thalweg/scheduler/array_storage.hpp"

namespace thalweg::scheduler {

// Views of the arrays of thalweg.interfaces.StepResult, same names, row-major; empty where the contract says [N, 0].
struct StepResult {
  std::int64_t step = 0;
  std::span<const std::int32_t> sampled_token_ids{};
  std::span<const std::int32_t> accepted_token_ids{};
  std::span<const std::int32_t> draft_token_ids{};
  std::span<const float> confidences{};
  std::span<const std::int8_t> row_status{};
  bool has_row_status = false;
};

// The fields of thalweg.interfaces.StepOutcome, same names, row-major, owned by the outcome.
struct StepOutcome {
  // max_*: room for `token_ids`, `closed_*` and `completed_ids`, which start empty and grow in place.
  struct Shape {
    std::size_t rows = 0;
    std::size_t draft_length = 0;
    std::size_t max_tokens = 0;
    std::size_t max_closed = 0;
    std::size_t max_completed = 0;
  };

  StepOutcome() = default;
  explicit StepOutcome(const Shape& shape);

  ArrayStorage storage;
  std::span<std::int64_t> closed_ids;
  std::span<std::int64_t> completed_ids;
  std::span<std::int32_t> token_offsets;
  std::span<std::int32_t> token_ids;
  std::span<std::int32_t> num_output_tokens;
  std::span<std::int32_t> num_verified;
  std::span<std::int32_t> num_accepted;
  std::span<std::int32_t> closed_num_output_tokens;
  std::span<float> verified_confidences;
  std::span<std::int8_t> finish_reasons;
  std::span<std::int8_t> closed_reasons;
};

// One more element at the end of an array that has room.
template <class Value>
void grow(std::span<Value>& values, Value value) {
  values = {values.data(), values.size() + 1};
  values.back() = value;
}

}  // namespace thalweg::scheduler
