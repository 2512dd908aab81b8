#include "thalweg/eplb/search_swaps.hpp"

#include <algorithm>
#include <bit>
#include <optional>

#include "thalweg/eplb/search_state.hpp"

namespace thalweg::eplb {
namespace {

using Swap = SearchState::Swap;

// After so many swaps loads are summed up again.
constexpr int renormalise_after = 256;
// Peaks are looked up after so many swaps, and after so many proposals if there was any swap: with few steps, the first
// rule alone would go on proposing from a rank that is no peak any more.
constexpr int find_peaks_after = 16;
constexpr std::int64_t look_again_after = 512;

// SplitMix64.
class Generator {
 public:
  explicit Generator(std::uint64_t seed) : state_(seed) {}
  std::uint64_t next() {
    std::uint64_t bits = state_ += 0x9E3779B97F4A7C15;
    bits = (bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9;
    bits = (bits ^ (bits >> 27)) * 0x94D049BB133111EB;
    return bits ^ (bits >> 31);
  }

 private:
  std::uint64_t state_;
};

std::size_t scaled(std::uint64_t bits32, std::size_t limit) {
  return static_cast<std::size_t>(((bits32 & 0xFFFFFFFF) * limit) >> 32);
}

// -log2 of a uniform number, with straight lines between powers of two: the same everywhere, which a logarithm is not.
float exponential(std::uint64_t bits) {
  const int zeros = std::countl_zero(bits | 1);
  const auto fraction = static_cast<float>(bits << zeros << 1 >> 40) * 0x1p-24F;
  return static_cast<float>(zeros + 1) - fraction;
}

// Copies that ranks hold now and held in origin.
class Moves {
 public:
  Moves(const SearchProblem& problem, const Slots& slots, const Slots& origin)
      : problem_(problem), surplus_(problem.num_ranks * problem.num_experts, 0) {
    for (std::size_t slot = 0; slot < problem.num_slots; ++slot) {
      ++surplus(slot / problem.slots_per_rank, slots[slot]);
      --surplus(slot / problem.slots_per_rank, origin[slot]);
    }
  }
  std::int64_t count() const {
    std::int64_t sum = 0;
    for (const std::int32_t of_rank : surplus_) sum += std::max(of_rank, 0);
    return sum;
  }
  // Change of `count` if rank i gave expert a to rank j for expert b.
  int change(std::size_t i, std::size_t j, std::int32_t a, std::int32_t b) {
    return (surplus(i, b) >= 0) - (surplus(i, a) > 0) + (surplus(j, a) >= 0) - (surplus(j, b) > 0);
  }
  void apply(std::size_t i, std::size_t j, std::int32_t a, std::int32_t b) {
    --surplus(i, a), ++surplus(i, b);
    --surplus(j, b), ++surplus(j, a);
  }

 private:
  std::int32_t& surplus(std::size_t rank, std::int32_t expert) {
    return surplus_[rank * problem_.num_experts + static_cast<std::size_t>(expert)];
  }
  const SearchProblem& problem_;
  std::vector<std::int32_t> surplus_;
};

class Walk {
 public:
  Walk(const SearchProblem& problem, const Shares& shares, const Slots& start, const SwapSearch& how)
      : problem_(problem),
        how_(how),
        state_(problem, shares, start),
        generator_(how.seed),
        best_{start, 0.0} {
    if (how.origin != nullptr) moves_.emplace(problem, start, *how.origin);
    best_.peak_sum = state_.renormalise();
    best_cost_ = best_.peak_sum + price();
  }

  Scored run() {
    for (std::int64_t done = 0; done < how_.proposals; ++done) {
      if (done % look_again_after == 0) start_round(done);
      Swap swap;
      const std::size_t step = propose(swap);
      if (is_promising(swap, step) && is_accepted(swap)) accept(swap);
    }
    keep_if_best();
    return std::move(best_);
  }

 private:
  void start_round(std::int64_t done) {
    if (swaps_since_peaks_ > 0) find_peaks();
    const double left = 1.0 - static_cast<double>(done) / static_cast<double>(how_.proposals);
    temperature_ = static_cast<float>(how_.temperature * left * left);
  }

  // A slot of the most loaded rank in a random step, and any slot.
  std::size_t propose(Swap& swap) {
    const std::uint64_t bits = generator_.next();
    const std::size_t step = ((bits & 0xFFFF) * problem_.num_steps) >> 16;
    swap.slot_i = state_.peak_rank(step) * problem_.slots_per_rank + (((bits >> 16 & 0xFFFF) * problem_.slots_per_rank) >> 16);
    swap.slot_j = scaled(bits >> 32, problem_.num_slots);
    return step;
  }

  // Reject for little what mostly would be rejected.
  bool is_promising(const Swap& swap, std::size_t step) const {
    const std::size_t i = state_.rank_of(swap.slot_i);
    const std::size_t j = state_.rank_of(swap.slot_j);
    if (i == j) return false;
    const float moved = state_.share_at(swap.slot_i, step) - state_.share_at(swap.slot_j, step);
    if (moved <= 0.0F) return false;
    if (state_.load_at(j, step) + moved * state_.inverse_peak(step) >= state_.load_at(i, step)) return false;
    return state_.is_allowed(swap) && state_.change_in_some_steps(swap, step) <= 0.0F;
  }

  bool is_accepted(const Swap& swap) {
    float change = state_.change(swap);
    if (moves_)
      change += static_cast<float>(how_.slot_price) *
                static_cast<float>(moves_->change(state_.rank_of(swap.slot_i), state_.rank_of(swap.slot_j),
                                                  state_.slots()[swap.slot_i], state_.slots()[swap.slot_j]));
    if (change < 0.0F || temperature_ == 0.0F) return change < 0.0F;
    return change < temperature_ * exponential(generator_.next());
  }

  void accept(const Swap& swap) {
    if (moves_)
      moves_->apply(state_.rank_of(swap.slot_i), state_.rank_of(swap.slot_j), state_.slots()[swap.slot_i],
                    state_.slots()[swap.slot_j]);
    state_.apply(swap);
    ++accepted_;
    ++swaps_since_peaks_;
    if (accepted_ % renormalise_after == 0 || state_.must_renormalise()) keep_if_best();
    if (swaps_since_peaks_ >= find_peaks_after) find_peaks();
  }

  void keep_if_best() {
    const double peak_sum = state_.renormalise();
    const double cost = peak_sum + price();
    if (cost >= best_cost_) return;
    best_ = {state_.slots(), peak_sum};
    best_cost_ = cost;
  }

  void find_peaks() {
    state_.find_peaks();
    swaps_since_peaks_ = 0;
  }

  double price() const { return moves_ ? how_.slot_price * static_cast<double>(moves_->count()) : 0.0; }

  const SearchProblem& problem_;
  const SwapSearch& how_;
  SearchState state_;
  Generator generator_;
  std::optional<Moves> moves_;
  Scored best_;
  double best_cost_ = 0.0;
  float temperature_ = 0.0F;
  int accepted_ = 0;
  int swaps_since_peaks_ = 0;
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
