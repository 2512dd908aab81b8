#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "thalweg/scheduler/array_storage.hpp"
#include "thalweg/scheduler/core_state.hpp"

namespace thalweg::scheduler {

// The fields of thalweg.interfaces.StepCorrection: same names, same shapes, row-major, owned by the correction.
struct StepCorrection {
  StepCorrection() = default;
  StepCorrection(std::size_t rows, std::size_t draft_length);

  ArrayStorage storage;
  std::span<std::int32_t> query_lengths;
  std::span<std::int32_t> context_lengths;
  std::span<std::int32_t> committed_lengths;
  std::span<std::int32_t> anchor_token_ids;
  std::span<std::int32_t> draft_token_ids;
  std::span<std::int32_t> draft_read_slots;
  std::span<std::int32_t> draft_write_slots;
  std::span<bool> is_live;
};

// Bring the rows of a planned decode step up to date with what was processed since. query_lengths: the verify lengths
// as the device distributed them; the step keeps them. Throws std::invalid_argument, before anything changed, for
// lengths that the step cannot have.
StepCorrection correct_step(CoreState& state, Step& step,
                            const std::optional<std::span<const std::int32_t>>& query_lengths);

}  // namespace thalweg::scheduler
