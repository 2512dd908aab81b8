#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "thalweg/scheduler/copy_few.hpp"
#include "thalweg/scheduler/prefetch.hpp"

namespace thalweg::scheduler {

// What the drafter said about one running sequence: the drafts attached to it, and the raw confidences of its last two
// rounds. A view into the table.
class DraftRecord {
 public:
  DraftRecord(std::byte* at, std::size_t length) noexcept : at_(at), length_(length) {}

  std::span<const std::int32_t> tokens() const noexcept { return {token_data(), length_}; }

  // Of the attached drafts; empty when unknown.
  std::span<const float> confidences() const noexcept { return round(state()->latest); }

  // Of the drafts that were attached before those; empty when unknown.
  std::span<const float> previous_confidences() const noexcept { return round(1u - state()->latest); }

  // A new round. tokens: as many as there are drafts. confidences: as many, or nullptr for unknown.
  void set(const std::int32_t* tokens, const float* confidences) const noexcept {
    const Rounds before = *state();
    const std::uint32_t latest = 1u - before.latest;
    const std::uint32_t is_known = confidences != nullptr;
    const std::uint32_t known = (before.known & (1u << before.latest)) | is_known << latest;
    *state() = {.latest = static_cast<std::uint16_t>(latest), .known = static_cast<std::uint16_t>(known)};
    copy_few(tokens, length_, token_data());
    if (confidences != nullptr) copy_few(confidences, length_, confidence_data(latest));
  }

  // Before the drafter ran once, padding stands in for drafts so that all rows are equally wide.
  void set_padding(std::int32_t token) const noexcept {
    std::fill_n(token_data(), length_, token);
    *state() = {};
  }

  static std::size_t size(std::size_t length) noexcept {
    return sizeof(Rounds) + length * (sizeof(std::int32_t) + 2 * sizeof(float));
  }

 private:
  // At the start of a record, before the tokens and two rows of confidences that take turns.
  struct Rounds {
    std::uint16_t latest = 0;
    std::uint16_t known = 0;  // a bit per row
  };

  Rounds* state() const noexcept { return reinterpret_cast<Rounds*>(at_); }
  std::int32_t* token_data() const noexcept { return reinterpret_cast<std::int32_t*>(at_ + sizeof(Rounds)); }
  float* confidence_data(std::uint32_t index) const noexcept {
    return reinterpret_cast<float*>(at_ + sizeof(Rounds) + (1 + index) * length_ * sizeof(std::int32_t));
  }
  std::span<const float> round(std::uint32_t index) const noexcept {
    return {confidence_data(index), (state()->known >> index & 1) != 0 ? length_ : 0};
  }

  std::byte* at_;
  std::size_t length_;
};

// The records of all draft slots, each in memory lines of its own: one line, with up to five drafts.
class DraftTable {
 public:
  DraftTable(std::int32_t num_slots, std::int32_t draft_length)
      : length_(static_cast<std::size_t>(draft_length)),
        lines_per_slot_((DraftRecord::size(length_) + sizeof(Line) - 1) / sizeof(Line)),
        lines_(std::make_unique<Line[]>((static_cast<std::size_t>(num_slots) + 1) * lines_per_slot_)) {}

  std::size_t length() const noexcept { return length_; }

  DraftRecord at(std::int32_t slot) const noexcept { return {address(slot), length_}; }

  void prefetch(std::int32_t slot) const noexcept { scheduler::prefetch(address(slot)); }

 private:
  std::byte* address(std::int32_t slot) const noexcept {
    auto* const records = reinterpret_cast<std::byte*>(lines_.get());
    return records + static_cast<std::size_t>(slot) * lines_per_slot_ * sizeof(Line);
  }

  struct alignas(64) Line {
    std::byte bytes[64];
  };

  std::size_t length_;
  std::size_t lines_per_slot_;
  std::unique_ptr<Line[]> lines_;
};

}  // namespace thalweg::scheduler
