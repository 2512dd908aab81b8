#pragma once

#include <cstdint>

#include "thalweg/eplb/search_problem.hpp"

namespace thalweg::eplb {

// A search for layers so small that all of it can be computed anew for each change.
struct ExchangeSearch {
  double enough = 0.0;       // tokens: end where the placement is as good as this
  double mean_load = 0.0;    // tokens of a rank, over all steps
  std::uint64_t seed = 0;
};

// Swaps slots and gives copies of one expert to another: the best placement met, by the sum over steps of the largest
// rank load. No rank holds more than problem.copies_on_rank copies of an expert if none does in start.
Scored exchanged(const SearchProblem& problem, const Scored& start, const ExchangeSearch& how);

}  // namespace thalweg::eplb
