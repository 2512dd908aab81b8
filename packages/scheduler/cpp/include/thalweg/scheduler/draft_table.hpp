#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "thalweg/scheduler/copy_few.hpp"

namespace thalweg::scheduler {

// The drafts attached to each running sequence and their raw confidences, by draft slot: close together in memory.
class DraftTable {
 public:
  DraftTable(std::int32_t num_slots, std::int32_t draft_length)
      : length_(static_cast<std::size_t>(draft_length)),
        tokens_((static_cast<std::size_t>(num_slots) + 1) * length_),
        confidences_(tokens_.size()),
        has_confidences_(static_cast<std::size_t>(num_slots) + 1) {}

  std::size_t length() const noexcept { return length_; }

  std::span<const std::int32_t> tokens(std::int32_t slot) const noexcept {
    return {tokens_.data() + at(slot), length_};
  }

  // Empty when unknown.
  std::span<const float> confidences(std::int32_t slot) const noexcept {
    return {confidences_.data() + at(slot), has_confidences_[static_cast<std::size_t>(slot)] != 0 ? length_ : 0};
  }

  // tokens: draft_length of them. confidences: as many, or nullptr for unknown.
  void set(std::int32_t slot, const std::int32_t* tokens, const float* confidences) noexcept {
    copy_few(tokens, length_, tokens_.data() + at(slot));
    has_confidences_[static_cast<std::size_t>(slot)] = confidences != nullptr;
    if (confidences != nullptr) copy_few(confidences, length_, confidences_.data() + at(slot));
  }

  // Before the drafter ran once, padding stands in for drafts so that all rows are equally wide.
  void set_padding(std::int32_t slot, std::int32_t token) noexcept {
    std::fill_n(tokens_.data() + at(slot), length_, token);
    has_confidences_[static_cast<std::size_t>(slot)] = 0;
  }

 private:
  std::size_t at(std::int32_t slot) const noexcept { return static_cast<std::size_t>(slot) * length_; }

  std::size_t length_;
  std::vector<std::int32_t> tokens_;
  std::vector<float> confidences_;
  std::vector<std::uint8_t> has_confidences_;
};

}  // namespace thalweg::scheduler
