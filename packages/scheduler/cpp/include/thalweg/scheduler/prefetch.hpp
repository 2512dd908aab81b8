#pragma once

#include <cstddef>

#include "thalweg/scheduler/sequence.hpp"

namespace thalweg::scheduler {

// Hints for loops over many sequences, whose records and tokens are scattered: what row i + distance needs is fetched
// while row i is worked on.
constexpr std::size_t record_distance = 24;
constexpr std::size_t content_distance = 10;  // the record is there by then and tells where its contents are

inline void prefetch([[maybe_unused]] const void* address) noexcept {
#if defined(__GNUC__) || defined(__clang__)
  __builtin_prefetch(address);
#endif
}

inline void prefetch_record(const Sequence* sequence) noexcept {
  const auto* bytes = reinterpret_cast<const char*>(sequence);
  prefetch(bytes);
  prefetch(bytes + 64);
  prefetch(bytes + 128);
}

}  // namespace thalweg::scheduler
