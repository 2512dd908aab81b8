#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "thalweg/scheduler/errors.hpp"

namespace thalweg::scheduler {

// What is known of one sequence's drafts when a step is planned. The counts are those before this step is counted.
struct DraftRounds {
  std::size_t num_drafts = 0;
  bool has_draft_info = false;
  std::uint32_t schedule_count = 0;
  std::uint32_t process_count = 0;
  std::span<const float> latest = {};    // of the last processed round, one per draft; empty = unknown
  std::span<const float> previous = {};  // of the round before
};

// The rounds that the step looks at, and the survival of every draft where a round is unknown.
struct StepRounds {
  std::span<const float> budget;
  std::span<const float> split;
  float unknown = 0.0F;
};

// Whether a draft is verified may not depend on its token, and the confidences of later drafts do depend on it. So how
// many drafts a step verifies comes from the round before the last, whose tokens are history; and whose drafts they are
// comes from the last round, where survival never increases: a later draft never overtakes an earlier one.
inline StepRounds rounds_for_step(const DraftRounds& drafts) {
  const bool is_in_flight = drafts.schedule_count == drafts.process_count + 1;
  if (!is_in_flight && drafts.schedule_count != drafts.process_count)
    throw InvariantError("schedule_count is " + std::to_string(drafts.schedule_count) + " and process_count is " +
                         std::to_string(drafts.process_count) + "; at most one step may be unprocessed");
  // With a step in flight the last processed round is the one before the last; the device redoes the split.
  const StepRounds rounds{
      .budget = is_in_flight ? drafts.latest : drafts.previous,
      .split = drafts.latest,
      .unknown = drafts.has_draft_info || is_in_flight ? 1.0F : 0.0F,
  };
  for (const auto& round : {rounds.budget, rounds.split})
    if (!round.empty() && round.size() != drafts.num_drafts)
      throw InvariantError("survival of " + std::to_string(round.size()) + " drafts is known; the sequence has " +
                           std::to_string(drafts.num_drafts));
  return rounds;
}

// Survival of each draft: the product of its own and all earlier confidences, in order. `unknown` for an empty round.
inline void write_survival(std::span<const float> confidences, float unknown, std::span<float> survival) noexcept {
  if (confidences.empty()) {
    std::fill(survival.begin(), survival.end(), unknown);
    return;
  }
  float product = 1.0F;
  for (std::size_t j = 0; j < survival.size(); ++j) survival[j] = product *= confidences[j];
}

}  // namespace thalweg::scheduler
