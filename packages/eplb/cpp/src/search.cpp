#include "thalweg/eplb/search.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

#include "thalweg/eplb/reference.hpp"
#include "thalweg/eplb/search_copies.hpp"
#include "thalweg/eplb/search_exchanges.hpp"
#include "thalweg/eplb/search_start.hpp"
#include "thalweg/eplb/search_swaps.hpp"

namespace thalweg::eplb {
namespace {

// Up to so many counts the plan of the reference costs little to make and to beat, and now and then is the better one.
constexpr std::size_t small_problem = 1 << 14;
// A small layer is searched further while it is this much worse than the plan of the reference.
constexpr double reference_margin = 1.005;
// How much worse a swap may make the objective at the start, in parts of the mean rank load.
constexpr double temperature = 1e-4;
// This part of the proposals goes to a fresh placement if there is a current one, which mostly is the better start.
constexpr std::int64_t fresh_part = 3;

class LayerSearch {
 public:
  LayerSearch(const SearchProblem& problem, const SearchOptions& options)
      : problem_(problem),
        options_(options),
        mean_load_(std::accumulate(problem.step_total.begin(), problem.step_total.end(), 0.0) /
                   static_cast<double>(problem.num_ranks)),
        by_power_(power_copies(problem)) {}

  Scored fresh(std::int64_t proposals) {
    Start best = packed_start(by_power_);
    const auto consider = [&best](std::optional<Start> other) {
      if (other && other->scored.peak_sum < best.scored.peak_sum) best = std::move(*other);
    };
    const bool is_small = problem_.counts.size() <= small_problem;
    const Copies by_peak = peak_copies(problem_);
    // The two rules differ in few slots, so on a large layer the second start need not be packed anew.
    consider(is_small ? packed_start(by_peak) : adapted_start(by_peak, best.scored.slots));
    if (!is_small) return run(best, proposals, nullptr);
    const Scored reference = reference_plan();
    consider(adapted_start(count_copies(problem_, reference.slots), reference.slots));
    const ExchangeSearch further{reference_margin * reference.peak_sum, mean_load_, options_.seed};
    return exchanged(problem_, run(best, proposals, nullptr), further);
  }

  std::optional<Scored> near(const Slots& current, std::int64_t proposals) {
    const std::optional<Start> start = adapted_start(by_power_, current);
    if (!start) return std::nullopt;
    return run(*start, proposals, &current);
  }

  // What a placement costs where `current` is in use, in tokens.
  double cost(const Scored& scored, const Slots& current) const {
    return scored.peak_sum + slot_price() * static_cast<double>(moved_slots(problem_, scored.slots, current));
  }

 private:
  struct Start {
    Shares shares;
    Scored scored;
  };

  Start packed_start(const Copies& copies) const {
    Shares shares = shares_of(problem_, copies);
    Slots slots = packed(problem_, copies, shares);
    return scored_start(std::move(shares), std::move(slots));
  }

  std::optional<Start> adapted_start(const Copies& copies, const Slots& current) const {
    Shares shares = shares_of(problem_, copies);
    std::optional<Slots> slots = adapted(problem_, copies, shares, current);
    if (!slots) return std::nullopt;
    return scored_start(std::move(shares), std::move(*slots));
  }

  Start scored_start(Shares shares, Slots slots) const {
    const double sum = peak_sum(problem_, shares, slots);
    return {std::move(shares), {std::move(slots), sum}};
  }

  // As the reference plans: a rank may hold an expert twice.
  Scored reference_plan() const {
    const Counts counts{problem_.by_step.data(), problem_.num_steps, problem_.num_experts};
    const std::vector<std::int32_t> experts = replicate_by_peak(counts, problem_.num_slots);
    const std::vector<std::int32_t> slot_of_copy = pack_by_peak(counts, experts, problem_.num_ranks);
    Slots slots(problem_.num_slots);
    for (std::size_t copy = 0; copy < slots.size(); ++copy)
      slots[static_cast<std::size_t>(slot_of_copy[copy])] = experts[copy];
    const double sum = peak_sum(problem_, shares_of(problem_, count_copies(problem_, slots)), slots);
    return {std::move(slots), sum};
  }

  Scored run(const Start& start, std::int64_t proposals, const Slots* origin) {
    SwapSearch how;
    how.proposals = proposals;
    how.temperature = temperature * mean_load_;
    how.origin = origin;
    how.slot_price = slot_price();
    how.seed = options_.seed + runs_++ * 0x9E3779B97F4A7C15;
    return improved(problem_, start.shares, start.scored.slots, how);
  }

  double slot_price() const { return options_.move_price * mean_load_ / static_cast<double>(problem_.num_slots); }

  const SearchProblem& problem_;
  const SearchOptions& options_;
  double mean_load_;
  Copies by_power_;
  std::uint64_t runs_ = 0;
};

}  // namespace

Slots search(const SearchProblem& problem, const std::optional<Slots>& current, const SearchOptions& options) {
  LayerSearch layer(problem, options);
  if (!current) return layer.fresh(options.proposals).slots;
  Scored best = layer.fresh(options.proposals / fresh_part);
  std::optional<Scored> near = layer.near(*current, options.proposals - options.proposals / fresh_part);
  if (near && layer.cost(*near, *current) <= layer.cost(best, *current)) best = std::move(*near);
  const Shares shares = shares_of(problem, count_copies(problem, *current));
  return best.peak_sum < (1.0 - options.min_gain) * peak_sum(problem, shares, *current) ? best.slots : *current;
}

}  // namespace thalweg::eplb
