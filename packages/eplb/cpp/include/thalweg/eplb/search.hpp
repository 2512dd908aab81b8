#pragma once

#include <cstdint>
#include <optional>

#include "thalweg/eplb/search_problem.hpp"

namespace thalweg::eplb {

// What a search may spend, and what a move must bring. `thalweg.eplb.SearchPlanner` explains each.
struct SearchOptions {
  std::int64_t proposals = 0;
  double move_price = 0.0;
  double min_gain = 0.0;
  std::uint64_t seed = 0;
};

// The better of a fresh placement and, if there is one, the current placement improved; the current one itself unless
// that lowers the sum over steps of the largest rank load by min_gain. The same on every processor.
Slots search(const SearchProblem& problem, const std::optional<Slots>& current, const SearchOptions& options);

}  // namespace thalweg::eplb
