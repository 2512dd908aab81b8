#pragma once

#include <cstdint>
#include <vector>

#include "thalweg/eplb/search_kernels.hpp"
#include "thalweg/eplb/search_problem.hpp"

namespace thalweg::eplb {

// A placement under search: swaps of two slots, and what they do to the smooth objective
//
//     sum over steps of peak / 32 * log(sum over ranks of (load / peak)^32)
//
// where peak is the largest rank load at the last renormalisation. It sees the ranks behind the most loaded one, and so
// leaves a margin for what the counts do not show. `change` is the tangent of that at the present sums. The logarithm
// is concave, so a swap improves at least as much as its tangent says.
class SearchState {
 public:
  SearchState(const SearchProblem& problem, const Shares& shares, Slots slots);

  struct Swap {
    std::size_t slot_i;
    std::size_t slot_j;
  };

  // Whether the ranks of these slots may hold each other's experts.
  bool is_allowed(const Swap& swap) const;
  // Change of the objective in tokens, over all steps.
  float change(const Swap& swap);
  void apply(const Swap& swap);
  // Loads from the slots, peaks from the loads: takes away what rounding has gathered. Returns the sum of the peaks.
  double renormalise();
  // The steps in which a rank weighs most in the objective, that first.
  void find_worst_steps(std::size_t rank, std::size_t* steps, std::size_t count);

  // Whether a step's sum fell so far below that of its peak that it has lost its digits.
  bool must_renormalise() const { return least_power_sum_ < 0.2F; }
  const SearchProblem& problem() const { return problem_; }
  const Slots& slots() const { return slots_; }
  std::size_t rank_of(std::size_t slot) const { return slot / problem_.slots_per_rank; }
  // Tokens of a copy in a step; of a rank, its load in parts of the step's peak, and the 32nd power of that.
  float share_at(std::size_t slot, std::size_t step) const { return share(slot)[step]; }
  float load_at(std::size_t rank, std::size_t step) const { return loads_[rank * problem_.length + step]; }
  float power_at(std::size_t rank, std::size_t step) const { return powers_[rank * problem_.length + step]; }
  // What parts of the powers of a step count in the objective.
  float weight(std::size_t step) const { return weight_[step]; }
  float inverse_peak(std::size_t step) const { return inverse_peak_[step]; }

 private:
  const float* share(std::size_t slot) const {
    return shares_.data() + static_cast<std::size_t>(slots_[slot]) * problem_.length;
  }
  std::int32_t& held(std::size_t rank, std::size_t slot) {
    return held_[rank * problem_.num_experts + static_cast<std::size_t>(slots_[slot])];
  }
  RankRows rows(std::size_t rank) {
    return {loads_.data() + rank * problem_.length, powers_.data() + rank * problem_.length};
  }

  const SearchProblem& problem_;
  Slots slots_;
  const Shares& shares_;
  std::vector<float> loads_;        // [num_ranks, length]
  std::vector<float> powers_;       // [num_ranks, length]
  std::vector<std::int32_t> held_;  // [num_ranks, num_experts] copies
  std::vector<float> peak_, inverse_peak_, power_sum_, weight_;  // [length]
  std::vector<float> terms_;        // [length] scratch of find_worst_steps
  float least_power_sum_ = 1.0F;
};

}  // namespace thalweg::eplb
