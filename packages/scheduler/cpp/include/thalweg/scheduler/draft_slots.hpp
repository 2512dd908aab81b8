#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "thalweg/scheduler/errors.hpp"

namespace thalweg::scheduler {

// Draft-info slots 1..count, last in first out so that the fresh ones come as 1, 2, 3, ...; slot 0 means none.
class DraftSlots {
 public:
  explicit DraftSlots(std::int32_t count) : count_(count) {
    free_.reserve(static_cast<std::size_t>(count));
    for (std::int32_t slot = count; slot >= 1; --slot) free_.push_back(slot);
  }

  std::int32_t take() {
    if (free_.empty()) throw InvariantError("all " + std::to_string(count_) + " draft slots are taken");
    const std::int32_t slot = free_.back();
    free_.pop_back();
    return slot;
  }

  // Give `slot` back and set it to none; does nothing when it is none already.
  void release(std::int32_t& slot) {
    if (slot == 0) return;
    free_.push_back(slot);
    slot = 0;
  }

  std::int32_t num_in_use() const noexcept { return count_ - static_cast<std::int32_t>(free_.size()); }

  // In the order in which they will be handed out.
  std::vector<std::int32_t> free_ids() const { return {free_.rbegin(), free_.rend()}; }

 private:
  std::int32_t count_;
  std::vector<std::int32_t> free_;
};

}  // namespace thalweg::scheduler
