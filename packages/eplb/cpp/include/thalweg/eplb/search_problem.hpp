#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace thalweg::eplb {

// One layer to plan: what was counted, and the slots to fill.
struct SearchProblem {
  // by_step: [steps, experts] tokens. slots is a multiple of ranks and at least experts.
  SearchProblem(std::vector<float> by_step, std::size_t experts, std::size_t slots, std::size_t ranks);

  const float* counts_of(std::size_t expert) const { return counts.data() + expert * length; }

  std::size_t num_steps;
  std::size_t num_experts;
  std::size_t num_slots;
  std::size_t num_ranks;
  std::size_t slots_per_rank;
  std::size_t length;              // of a row of steps, see row_multiple
  std::size_t copies_on_rank;      // most copies of an expert on a rank: 1 unless it has more slots than experts
  std::vector<float> by_step;      // [num_steps, num_experts] tokens
  std::vector<float> counts;       // [num_experts, length] the same
  std::vector<double> step_total, expert_total;  // tokens, [num_steps] and [num_experts]
};

using Copies = std::vector<std::int32_t>;  // of each expert, at least 1; sums up to the slots
using Slots = std::vector<std::int32_t>;   // the expert in each slot; slot p is on rank p / slots_per_rank

// Tokens of one copy of each expert: [num_experts, length].
using Shares = std::vector<float>;
Shares shares_of(const SearchProblem& problem, const Copies& copies);
// Set the shares of one expert.
void share_out(const SearchProblem& problem, std::size_t expert, std::int32_t copies, Shares& shares);

// Sum over steps of the largest rank load, in tokens.
double peak_sum(const SearchProblem& problem, const Shares& shares, const Slots& slots);

// A placement and its sum over steps of the largest rank load.
struct Scored {
  Slots slots;
  double peak_sum = 0.0;
};

// Copies of each expert in a placement.
Copies count_copies(const SearchProblem& problem, std::span<const std::int32_t> slots);

}  // namespace thalweg::eplb
