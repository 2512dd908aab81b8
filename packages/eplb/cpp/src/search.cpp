#include "thalweg/eplb/search.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

#include "thalweg/eplb/search_copies.hpp"
#include "thalweg/eplb/search_start.hpp"
#include "thalweg/eplb/search_swaps.hpp"

namespace thalweg::eplb {
namespace {

// Each fresh start gets this part of the proposals before the better one gets the rest.
constexpr std::int64_t trial_part = 10;
// How much worse a swap may make the objective at the start, in parts of the mean rank load.
constexpr double temperature = 1e-4;
// A fresh placement moves nearly every slot, so it must be this much better than one made from the current placement.
constexpr double fresh_gain = 0.01;

class LayerSearch {
 public:
  LayerSearch(const SearchProblem& problem, const SearchOptions& options)
      : problem_(problem),
        options_(options),
        mean_load_(std::accumulate(problem.step_total.begin(), problem.step_total.end(), 0.0) /
                   static_cast<double>(problem.num_ranks)) {}

  Scored fresh(std::int64_t proposals) {
    Start best = packed_start(power_copies(problem_), proposals / trial_part);
    Start other = packed_start(peak_copies(problem_), proposals / trial_part);
    if (other.best.peak_sum < best.best.peak_sum) best = std::move(other);
    return run(best.shares, best.best.slots, proposals - proposals / trial_part * 2, nullptr);
  }

  std::optional<Scored> near(const Slots& current, std::int64_t proposals) {
    const Copies copies = power_copies(problem_);
    const Shares shares = shares_of(problem_, copies);
    const std::optional<Slots> start = adapted(problem_, copies, shares, current);
    if (!start) return std::nullopt;
    return run(shares, *start, proposals, &current);
  }

 private:
  struct Start {
    Shares shares;
    Scored best;
  };

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
    how.slot_price = options_.move_price * mean_load_ / static_cast<double>(problem_.num_slots);
    how.seed = options_.seed + runs_++ * 0x9E3779B97F4A7C15;
    return improved(problem_, shares, start, how);
  }

  const SearchProblem& problem_;
  const SearchOptions& options_;
  double mean_load_;
  std::uint64_t runs_ = 0;
};

}  // namespace

Slots search(const SearchProblem& problem, const std::optional<Slots>& current, const SearchOptions& options) {
  LayerSearch layer(problem, options);
  if (!current) return layer.fresh(options.proposals).slots;
  Scored best = layer.fresh(options.proposals / 2);
  std::optional<Scored> near = layer.near(*current, options.proposals / 2);
  if (near && best.peak_sum >= (1.0 - fresh_gain) * near->peak_sum) best = std::move(*near);
  const Shares shares = shares_of(problem, count_copies(problem, *current));
  return best.peak_sum < (1.0 - options.min_gain) * peak_sum(problem, shares, *current) ? best.slots : *current;
}

}  // namespace thalweg::eplb
