#include "thalweg/eplb/search_state.hpp"

#include <algorithm>
#include <utility>

namespace thalweg::eplb {
SearchState::SearchState(const SearchProblem& problem, const Shares& shares, Slots slots)
    : problem_(problem),
      slots_(std::move(slots)),
      shares_(shares),
      loads_(problem.num_ranks * problem.length),
      powers_(problem.num_ranks * problem.length),
      held_(problem.num_ranks * problem.num_experts, 0),
      peak_(problem.length),
      inverse_peak_(problem.length),
      power_sum_(problem.length),
      weight_(problem.length),
      terms_(problem.length) {
  for (std::size_t slot = 0; slot < problem.num_slots; ++slot) ++held(rank_of(slot), slot);
  renormalise();
}

bool SearchState::is_allowed(const Swap& swap) const {
  const auto most = static_cast<std::int32_t>(problem_.copies_on_rank);
  const auto copies_on = [&](std::size_t rank, std::size_t slot) {
    return held_[rank * problem_.num_experts + static_cast<std::size_t>(slots_[slot])];
  };
  return slots_[swap.slot_i] != slots_[swap.slot_j] && copies_on(rank_of(swap.slot_i), swap.slot_j) < most &&
         copies_on(rank_of(swap.slot_j), swap.slot_i) < most;
}

float SearchState::change(const Swap& swap) {
  return swap_change(rows(rank_of(swap.slot_i)), rows(rank_of(swap.slot_j)), share(swap.slot_i), share(swap.slot_j),
                     {inverse_peak_.data(), weight_.data()}, problem_.length);
}

void SearchState::apply(const Swap& swap) {
  const std::size_t i = rank_of(swap.slot_i);
  const std::size_t j = rank_of(swap.slot_j);
  least_power_sum_ =
      apply_swap(rows(i), rows(j), share(swap.slot_i), share(swap.slot_j), inverse_peak_.data(), peak_.data(),
                 power_sum_.data(), weight_.data(), problem_.length, problem_.num_steps);
  --held(i, swap.slot_i);
  --held(j, swap.slot_j);
  std::swap(slots_[swap.slot_i], slots_[swap.slot_j]);
  ++held(i, swap.slot_i);
  ++held(j, swap.slot_j);
}

double SearchState::renormalise() {
  std::fill(loads_.begin(), loads_.end(), 0.0F);
  std::fill(peak_.begin(), peak_.end(), 0.0F);
  for (std::size_t slot = 0; slot < problem_.num_slots; ++slot)
    add_row(rows(rank_of(slot)).load, share(slot), problem_.length);
  for (std::size_t rank = 0; rank < problem_.num_ranks; ++rank)
    raise_row(peak_.data(), rows(rank).load, problem_.length);
  double sum = 0.0;
  for (std::size_t t = 0; t < problem_.length; ++t) {
    inverse_peak_[t] = peak_[t] > 0.0F ? 1.0F / peak_[t] : 0.0F;
    sum += static_cast<double>(peak_[t]);
  }
  std::fill(power_sum_.begin(), power_sum_.end(), 0.0F);
  for (std::size_t rank = 0; rank < problem_.num_ranks; ++rank)
    normalise_rank(rows(rank), inverse_peak_.data(), power_sum_.data(), problem_.length);
  weigh_steps(peak_.data(), power_sum_.data(), weight_.data(), problem_.length);
  least_power_sum_ = 1.0F;
  return sum;
}

void SearchState::find_worst_steps(std::size_t rank, std::size_t* steps, std::size_t count) {
  multiply_rows(powers_.data() + rank * problem_.length, weight_.data(), terms_.data(), problem_.length);
  for (std::size_t at = 0; at < count; ++at) {
    steps[at] = largest_place(terms_.data(), problem_.length);
    terms_[steps[at]] = -1.0F;
  }
}

}  // namespace thalweg::eplb
