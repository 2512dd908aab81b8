#pragma once

#include <optional>

#include "thalweg/eplb/search_problem.hpp"

namespace thalweg::eplb {

// Placements that a search starts from. No rank holds more than problem.copies_on_rank copies of an expert.

// Heaviest copy first, each to the rank that raises the sum over steps of the largest rank load least.
Slots packed(const SearchProblem& problem, const Copies& copies, const Shares& shares);

// The current placement with as few slots changed as these copies allow: copies too many leave the most loaded ranks,
// and missing ones take their place as `packed` would. None where the vacated slots cannot hold them.
std::optional<Slots> adapted(const SearchProblem& problem, const Copies& copies, const Shares& shares,
                             const Slots& current);

}  // namespace thalweg::eplb
