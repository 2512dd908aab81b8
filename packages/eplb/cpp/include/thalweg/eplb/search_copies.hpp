#pragma once

#include "thalweg/eplb/search_problem.hpp"

namespace thalweg::eplb {

// How many copies each expert gets, by two rules. Both give one slot after the other to the expert that gains most;
// equal gains go to the larger load per copy, then to the fewer copies, then to the lower expert.

// An expert gains what its copies' tokens to the 48th power fall by, summed over steps: nearly "the largest load per
// copy in any step". Sees an expert that is second in its hot steps, which the next rule does not.
Copies power_copies(const SearchProblem& problem);

// An expert gains what the sum over steps of the largest load per copy falls by.
Copies peak_copies(const SearchProblem& problem);

}  // namespace thalweg::eplb
