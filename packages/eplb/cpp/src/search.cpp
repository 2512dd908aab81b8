#include "thalweg/eplb/search.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

#include "thalweg/eplb/reference.hpp"
#include "thalweg/eplb/search_copies.hpp"
#include "thalweg/eplb/search_start.hpp"
#include "thalweg/eplb/search_swaps.hpp"

namespace thalweg::eplb {
namespace {

// Each fresh start gets this part of the proposals before the better one gets the rest.
constexpr std::int64_t trial_part = 25;
// Up to so many counts a third start costs little, and where there are few tokens it sometimes is the best.
constexpr std::size_t small_problem = 1 << 14;
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
    const std::int64_t trial = proposals / trial_part;
    Start best = packed_start(by_power_, trial);
    const auto consider = [&best](Start other) {
      if (other.best.peak_sum < best.best.peak_sum) best = std::move(other);
    };
    consider(packed_start(peak_copies(problem_), trial));
    if (problem_.counts.size() <= small_problem)
      if (std::optional<Start> start = reference_start(trial)) consider(std::move(*start));
    return run(best.shares, best.best.slots, proposals - trial * 2, nullptr);
  }

  std::optional<Scored> near(const Slots& current, std::int64_t proposals) {
    const Shares shares = shares_of(problem_, by_power_);
    const std::optional<Slots> start = adapted(problem_, by_power_, shares, current);
    if (!start) return std::nullopt;
    return run(shares, *start, proposals, &current);
  }

  // What a placement costs where `current` is in use, in tokens.
  double cost(const Scored& scored, const Slots& current) const {
    return scored.peak_sum + slot_price() * static_cast<double>(moved_slots(problem_, scored.slots, current));
  }

 private:
  struct Start {
    Shares shares;
    Scored best;
  };

  // The plan of the reference, without second copies on a rank; none where those have no other place.
  std::optional<Start> reference_start(std::int64_t proposals) {
    const Counts counts{problem_.by_step.data(), problem_.num_steps, problem_.num_experts};
    const std::vector<std::int32_t> experts = replicate_by_peak(counts, problem_.num_slots);
    const std::vector<std::int32_t> slot_of_copy = pack_by_peak(counts, experts, problem_.num_ranks);
    Slots slots(problem_.num_slots);
    for (std::size_t copy = 0; copy < slots.size(); ++copy)
      slots[static_cast<std::size_t>(slot_of_copy[copy])] = experts[copy];
    const Copies copies = count_copies(problem_, slots);
    Shares shares = shares_of(problem_, copies);
    const std::optional<Slots> start = adapted(problem_, copies, shares, slots);
    if (!start) return std::nullopt;
    Scored best = run(shares, *start, proposals, nullptr);
    return Start{std::move(shares), std::move(best)};
  }

  Start packed_start(const Copies& copies, std::int64_t proposals) {
    Shares shares = shares_of(problem_, copies);
    Scored best = run(shares, packed(problem_, copies, shares), proposals, nullptr);
    return {std::move(shares), std::move(best)};
  }

  Scored run(const Shares& shares, const Slots& start, std::int64_t proposals, const Slots* origin) {
    SwapSearch how;
    how.proposals = proposals;
    how.temperature = temperature * mean_load_;
    how.origin = origin;
    how.slot_price = slot_price();
    how.seed = options_.seed + runs_++ * 0x9E3779B97F4A7C15;
    return improved(problem_, shares, start, how);
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
