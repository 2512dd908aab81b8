#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "thalweg/scheduler/copy_few.hpp"

namespace thalweg::scheduler {

// The committed tokens of a sequence. The newest ones are also kept inside the object and moved out in groups: a decode
// step that reads and appends a few tokens touches no other memory, which is most of its time with many sequences.
class TokenLog {
 public:
  // Slots for the newest tokens. All but `max_group` of them are sure to be found there.
  static constexpr std::int32_t num_recent = 32;
  static constexpr std::int32_t max_group = 8;

  std::int32_t size() const noexcept { return size_; }

  std::int32_t operator[](std::int32_t position) const noexcept {
    return position >= oldest_recent() ? recent_[slot(position)] : stored_[static_cast<std::size_t>(position)];
  }

  // Replace everything by `tokens`, with room for `capacity` of them.
  void assign(std::span<const std::int32_t> tokens, std::size_t capacity) {
    stored_.reserve(capacity);
    stored_.assign(tokens.begin(), tokens.end());
    size_ = static_cast<std::int32_t>(tokens.size());
    for (std::int32_t at = std::max(0, size_ - num_recent); at < size_; ++at)
      recent_[slot(at)] = tokens[static_cast<std::size_t>(at)];
  }

  // Append the first `count` tokens of a group. How many is hard to guess, so a small group is copied as a whole: what
  // is too much falls on old tokens, which are stored.
  void append(std::span<const std::int32_t> group, std::int32_t count) {
    const std::size_t first = slot(size_);
    if (group.size() > max_group || first + group.size() > num_recent) {
      append(group.first(static_cast<std::size_t>(count)));
      return;
    }
    copy_few(group.data(), group.size(), recent_.data() + first);
    size_ += count;
    if (size_ % num_recent == 0 && count > 0) store();
  }

  void append(std::span<const std::int32_t> tokens) {
    std::int32_t size = size_;
    for (const std::int32_t token : tokens) {
      recent_[slot(size)] = token;
      if (++size % num_recent == 0) store();
    }
    size_ = size;
  }

  // Copy `count` tokens from `begin` on.
  void copy(std::int32_t begin, std::int32_t count, std::int32_t* out) const {
    const std::int32_t end = begin + count;
    std::int32_t at = begin;
    for (const std::int32_t end_stored = std::min(oldest_recent(), end); at < end_stored; ++at)
      *out++ = stored_[static_cast<std::size_t>(at)];
    for (; at < end; ++at) *out++ = recent_[slot(at)];
  }

 private:
  // From this position on all tokens are in the ring.
  std::int32_t oldest_recent() const noexcept {
    return std::min(size_ - (num_recent - max_group), size_ & ~(num_recent - 1));
  }

  static std::size_t slot(std::int32_t position) noexcept {
    return static_cast<std::size_t>(position) % static_cast<std::size_t>(num_recent);
  }

  // Called when the newest token sits in the last slot: those not stored yet are a contiguous piece.
  void store() {
    const auto first = recent_.begin() + static_cast<std::ptrdiff_t>(stored_.size() % num_recent);
    stored_.insert(stored_.end(), first, recent_.end());
  }

  std::vector<std::int32_t> stored_;  // all but at most num_recent - 1 of the newest
  std::int32_t size_ = 0;
  std::array<std::int32_t, num_recent> recent_;  // token i in slot i % num_recent
};

}  // namespace thalweg::scheduler
