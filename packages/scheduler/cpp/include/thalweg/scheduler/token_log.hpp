#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "thalweg/scheduler/copy_few.hpp"

namespace thalweg::scheduler {

// The committed tokens of a sequence. The newest ones are also kept inside the object and moved out in groups: a decode
// step that reads and appends a few tokens touches no other memory, which is most of its time with many sequences.
// Outside they lie in chunks, so that growing never copies a long output.
class TokenLog {
 public:
  // Slots for the newest tokens. All but `max_group` of them are sure to be found there.
  static constexpr std::int32_t num_recent = 32;
  static constexpr std::int32_t max_group = 8;

  std::int32_t size() const noexcept { return size_; }

  std::int32_t operator[](std::int32_t position) const noexcept {
    return position >= oldest_recent() ? recent_[slot(position)] : *stored(position);
  }

  // Replace everything by `tokens`.
  void assign(std::span<const std::int32_t> tokens) {
    num_stored_ = 0;
    store(tokens);
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
    if (size_ % num_recent == 0 && count > 0) store_recent();
  }

  void append(std::span<const std::int32_t> tokens) {
    for (const std::int32_t token : tokens) {
      recent_[slot(size_)] = token;
      if (++size_ % num_recent == 0) store_recent();
    }
  }

  // Copy `count` tokens from `begin` on.
  void copy(std::int32_t begin, std::int32_t count, std::int32_t* out) const {
    const std::int32_t end = begin + count;
    const std::int32_t end_stored = std::min(oldest_recent(), end);
    std::int32_t at = begin;
    while (at < end_stored) {
      const std::int32_t piece = std::min(end_stored - at, chunk_size - at % chunk_size);
      out = std::copy_n(stored(at), piece, out);
      at += piece;
    }
    for (; at < end; ++at) *out++ = recent_[slot(at)];
  }

 private:
  static constexpr std::int32_t chunk_size = 1024;  // a multiple of num_recent: a group never spans two chunks

  using Chunk = std::array<std::int32_t, chunk_size>;

  static std::size_t slot(std::int32_t position) noexcept {
    return static_cast<std::size_t>(position) % static_cast<std::size_t>(num_recent);
  }

  // From this position on all tokens are in the ring.
  std::int32_t oldest_recent() const noexcept {
    return std::min(size_ - (num_recent - max_group), size_ & ~(num_recent - 1));
  }

  std::int32_t* stored(std::int32_t position) const noexcept {
    return chunks_[static_cast<std::size_t>(position / chunk_size)]->data() + position % chunk_size;
  }

  // Called when the newest token sits in the last slot: those not stored yet are a contiguous piece.
  void store_recent() { store(std::span(recent_).subspan(slot(num_stored_))); }

  void store(std::span<const std::int32_t> tokens) {
    while (!tokens.empty()) {
      if (num_stored_ == chunk_size * static_cast<std::int64_t>(chunks_.size()))
        chunks_.push_back(std::make_unique_for_overwrite<Chunk>());
      const auto room = static_cast<std::size_t>(chunk_size - num_stored_ % chunk_size);
      const auto piece = tokens.first(std::min(tokens.size(), room));
      std::copy(piece.begin(), piece.end(), stored(num_stored_));
      num_stored_ += static_cast<std::int32_t>(piece.size());
      tokens = tokens.subspan(piece.size());
    }
  }

  std::vector<std::unique_ptr<Chunk>> chunks_;
  std::int32_t num_stored_ = 0;  // all but at most num_recent - 1 of the newest
  std::int32_t size_ = 0;
  std::array<std::int32_t, num_recent> recent_;  // token i in slot i % num_recent
};

}  // namespace thalweg::scheduler
