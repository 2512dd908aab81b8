#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "thalweg/scheduler/core_state.hpp"

namespace thalweg::scheduler {

struct NewRequest {
  std::span<const std::int32_t> token_ids{};
  std::int64_t max_tokens = 0;
  std::int32_t end_token = -1;  // -1 = none
  std::span<const std::int32_t> checkpoints{};
  bool is_schedulable = true;
  bool is_structured = false;
  std::optional<std::int64_t> prompt_length{};  // tokens from there on are output; nothing = there is none
};

// Throws RequestError naming the argument, its value and what is accepted.
void check_request(const NewRequest& request);

// The record of a checked request: it waits, owns nothing and stands in no queue yet.
Sequence& make_sequence(CoreState& state, const NewRequest& request);

}  // namespace thalweg::scheduler
