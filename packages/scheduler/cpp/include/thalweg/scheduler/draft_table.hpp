#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "thalweg/scheduler/copy_few.hpp"

namespace thalweg::scheduler {

// The drafts attached to each running sequence and the raw confidences of its last two rounds, by draft slot: close
// together in memory.
class DraftTable {
 public:
  DraftTable(std::int32_t num_slots, std::int32_t draft_length)
      : length_(static_cast<std::size_t>(draft_length)),
        tokens_((static_cast<std::size_t>(num_slots) + 1) * length_),
        confidences_(2 * tokens_.size()),
        rounds_(static_cast<std::size_t>(num_slots) + 1) {}

  std::size_t length() const noexcept { return length_; }

  std::span<const std::int32_t> tokens(std::int32_t slot) const noexcept {
    return {tokens_.data() + at(slot), length_};
  }

  // Of the attached drafts; empty when unknown.
  std::span<const float> confidences(std::int32_t slot) const noexcept {
    return confidences_of(slot, rounds_[static_cast<std::size_t>(slot)].latest);
  }

  // Of the drafts that were attached before those; empty when unknown.
  std::span<const float> previous_confidences(std::int32_t slot) const noexcept {
    return confidences_of(slot, 1 - rounds_[static_cast<std::size_t>(slot)].latest);
  }

  // A new round. tokens: draft_length of them. confidences: as many, or nullptr for unknown.
  void set(std::int32_t slot, const std::int32_t* tokens, const float* confidences) noexcept {
    Rounds& rounds = rounds_[static_cast<std::size_t>(slot)];
    rounds.latest ^= 1;
    rounds.is_known[rounds.latest] = confidences != nullptr;
    copy_few(tokens, length_, tokens_.data() + at(slot));
    if (confidences == nullptr) return;
    copy_few(confidences, length_, confidences_.data() + 2 * at(slot) + rounds.latest * length_);
  }

  // Before the drafter ran once, padding stands in for drafts so that all rows are equally wide.
  void set_padding(std::int32_t slot, std::int32_t token) noexcept {
    std::fill_n(tokens_.data() + at(slot), length_, token);
    rounds_[static_cast<std::size_t>(slot)] = {};
  }

 private:
  // Two rows of confidences per slot take turns.
  struct Rounds {
    std::uint8_t latest = 0;
    bool is_known[2] = {false, false};
  };

  std::size_t at(std::int32_t slot) const noexcept { return static_cast<std::size_t>(slot) * length_; }

  std::span<const float> confidences_of(std::int32_t slot, int round) const noexcept {
    const bool is_known = rounds_[static_cast<std::size_t>(slot)].is_known[round];
    return {confidences_.data() + 2 * at(slot) + static_cast<std::size_t>(round) * length_, is_known ? length_ : 0};
  }

  std::size_t length_;
  std::vector<std::int32_t> tokens_;
  std::vector<float> confidences_;
  std::vector<Rounds> rounds_;
};

}  // namespace thalweg::scheduler
