#pragma once

#include <cstddef>

#include "thalweg/scheduler/sequence.hpp"

namespace thalweg::scheduler {

// A forward pass evicts the records between two steps, and loops visit them in an order that the processor cannot
// guess: the record of row i + distance is fetched while row i is worked on.
constexpr std::size_t record_distance = 24;

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
