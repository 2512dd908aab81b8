#pragma once

#include <cstdint>

#include "thalweg/eplb/search_problem.hpp"

namespace thalweg::eplb {

// Swaps slots of a placement for so many proposals.
struct SwapSearch {
  std::int64_t proposals = 0;
  double temperature = 0.0;         // at the start, in tokens: how much worse a swap may make it
  const Slots* origin = nullptr;    // the placement to stay near, or none
  double slot_price = 0.0;          // of a slot that is not as in origin, in tokens
  std::uint64_t seed = 0;
};

// The best placement met, by peak_sum plus the price of the moved slots; never worse than the start.
Scored improved(const SearchProblem& problem, const Shares& shares, const Slots& start, const SwapSearch& how);

// Slots whose expert the rank does not hold in origin, each copy counted.
std::int64_t moved_slots(const SearchProblem& problem, const Slots& slots, const Slots& origin);

}  // namespace thalweg::eplb
