#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace thalweg::scheduler {

// Views of the arrays of thalweg.interfaces.StepResult, same names, row-major; empty where the contract says [N, 0].
struct StepResult {
  std::int64_t step = 0;
  std::span<const std::int32_t> sampled_token_ids;
  std::span<const std::int32_t> accepted_token_ids;
  std::span<const std::int32_t> draft_token_ids;
  std::span<const float> confidences;
  std::span<const std::int8_t> row_status;
  bool has_row_status = false;
};

// The fields of thalweg.interfaces.StepOutcome, same names, row-major.
struct StepOutcome {
  std::vector<std::int32_t> token_offsets;
  std::vector<std::int32_t> token_ids;
  std::vector<std::int32_t> num_output_tokens;
  std::vector<std::int8_t> finish_reasons;
  std::vector<std::int32_t> num_verified;
  std::vector<std::int32_t> num_accepted;
  std::vector<float> verified_confidences;
  std::vector<std::int64_t> closed_ids;
  std::vector<std::int8_t> closed_reasons;
  std::vector<std::int32_t> closed_num_output_tokens;
};

}  // namespace thalweg::scheduler
