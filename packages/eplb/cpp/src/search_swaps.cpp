#include "thalweg/eplb/search_swaps.hpp"

#include <numeric>
#include <optional>
#include <utility>

#include "thalweg/eplb/search_moves.hpp"
#include "thalweg/eplb/search_random.hpp"
#include "thalweg/eplb/search_screen.hpp"
#include "thalweg/eplb/search_state.hpp"

namespace thalweg::eplb {
namespace {

using Swap = SearchState::Swap;

// So many of a slot's swaps, those that the screen likes best, are looked at over all steps.
constexpr int most_looks = 10;
// After so many swaps loads are summed up again.
constexpr std::int64_t renormalise_after = 256;
// After so many swaps the screen looks at all ranks again: each swap changes what steps weigh for all of them.
constexpr std::int64_t follow_all_after = 64;

// Steps in a random order, all before any comes again.
class StepOrder {
 public:
  explicit StepOrder(std::size_t num_steps) : order_(num_steps) { std::iota(order_.begin(), order_.end(), 0); }
  std::size_t next(Generator& generator) {
    if (at_ == order_.size()) at_ = 0;
    std::swap(order_[at_], order_[at_ + generator.below(order_.size() - at_)]);
    return order_[at_++];
  }

 private:
  std::vector<std::size_t> order_;
  std::size_t at_ = 0;
};

class Walk {
 public:
  Walk(const SearchProblem& problem, const Shares& shares, const Slots& start, const SwapSearch& how)
      : problem_(problem),
        how_(how),
        state_(problem, shares, start),
        screen_(state_),
        generator_(how.seed),
        order_(problem.num_steps),
        best_{start, 0.0} {
    if (how.origin != nullptr) moves_.emplace(problem, start, *how.origin);
    best_.peak_sum = state_.renormalise();
    best_cost_ = best_.peak_sum + price();
  }

  Scored run() {
    while (done_ < how_.proposals) unload(order_.next(generator_));
    keep_if_best();
    return std::move(best_);
  }

 private:
  // Propose the slots of the most loaded rank of a step, one after the other.
  void unload(std::size_t step) {
    const std::size_t first = screen_.open(step) * problem_.slots_per_rank;
    for (std::size_t slot = first; slot < first + problem_.slots_per_rank && done_ < how_.proposals; ++slot, ++done_) {
      const double left = 1.0 - static_cast<double>(done_) / static_cast<double>(how_.proposals);
      temperature_ = static_cast<float>(how_.temperature * left * left);
      const std::optional<Swap> swap = choose(slot);
      // Where all has been summed up again, another rank may be the most loaded one.
      if (swap && accept(*swap)) return;
    }
  }

  // The first acceptable one of the most promising swaps of a slot.
  std::optional<Swap> choose(std::size_t slot) {
    screen_.score(slot);
    for (int look = 0; look < most_looks;) {
      const Swap swap{slot, screen_.take_best()};
      if (swap.slot_j == problem_.num_slots) break;
      if (!state_.is_allowed(swap)) continue;
      if (is_acceptable(swap)) return swap;
      ++look;
    }
    return std::nullopt;
  }

  bool is_acceptable(const Swap& swap) {
    float change = state_.change(swap);
    if (moves_) change += static_cast<float>(how_.slot_price) * static_cast<float>(with_moves(swap, &Moves::change));
    if (change < 0.0F || temperature_ == 0.0F) return change < 0.0F;
    return change < temperature_ * generator_.exponential();
  }

  // Returns whether the loads have been summed up again.
  bool accept(const Swap& swap) {
    if (moves_) with_moves(swap, &Moves::apply);
    state_.apply(swap);
    ++accepted_;
    const bool sums_up = accepted_ % renormalise_after == 0 || state_.must_renormalise();
    if (sums_up) keep_if_best();
    if (sums_up || accepted_ % follow_all_after == 0) screen_.follow_all();
    if (!sums_up) screen_.follow(swap);
    return sums_up;
  }

  template <class Result>
  Result with_moves(const Swap& swap, Result (Moves::*what)(std::size_t, std::size_t, std::int32_t, std::int32_t)) {
    return ((*moves_).*what)(state_.rank_of(swap.slot_i), state_.rank_of(swap.slot_j), state_.slots()[swap.slot_i],
                             state_.slots()[swap.slot_j]);
  }

  void keep_if_best() {
    const double peak_sum = state_.renormalise();
    const double cost = peak_sum + price();
    if (cost >= best_cost_) return;
    best_ = {state_.slots(), peak_sum};
    best_cost_ = cost;
  }

  double price() const { return moves_ ? how_.slot_price * static_cast<double>(moves_->count()) : 0.0; }

  const SearchProblem& problem_;
  const SwapSearch& how_;
  SearchState state_;
  SwapScreen screen_;
  Generator generator_;
  StepOrder order_;
  std::optional<Moves> moves_;
  Scored best_;
  double best_cost_ = 0.0;
  std::int64_t done_ = 0;
  float temperature_ = 0.0F;
  std::int64_t accepted_ = 0;
};

}  // namespace

Scored improved(const SearchProblem& problem, const Shares& shares, const Slots& start, const SwapSearch& how) {
  // With one slot on each rank, or one rank, every order is the same.
  if (problem.slots_per_rank == 1 || problem.num_ranks == 1) return {start, peak_sum(problem, shares, start)};
  return Walk(problem, shares, start, how).run();
}

std::int64_t moved_slots(const SearchProblem& problem, const Slots& slots, const Slots& origin) {
  return Moves(problem, slots, origin).count();
}

}  // namespace thalweg::eplb
