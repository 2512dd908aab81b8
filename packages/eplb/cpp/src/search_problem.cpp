#include "thalweg/eplb/search_problem.hpp"

#include <algorithm>
#include <utility>

#include "thalweg/eplb/lanes.hpp"
#include "thalweg/eplb/search_kernels.hpp"

namespace thalweg::eplb {

SearchProblem::SearchProblem(std::vector<float> given, std::size_t experts, std::size_t slots, std::size_t ranks)
    : num_steps(given.size() / experts),
      num_experts(experts),
      num_slots(slots),
      num_ranks(ranks),
      slots_per_rank(slots / ranks),
      length(padded_length(num_steps)),
      copies_on_rank((slots_per_rank + experts - 1) / experts),
      by_step(std::move(given)),
      counts(experts * length, 0.0F),
      step_total(num_steps, 0.0),
      expert_total(experts, 0.0) {
  for (std::size_t t = 0; t < num_steps; ++t) {
    const float* row = by_step.data() + t * experts;
    for (std::size_t e = 0; e < experts; ++e) {
      step_total[t] += static_cast<double>(row[e]);
      expert_total[e] += static_cast<double>(row[e]);
    }
  }
  // Some steps of all experts at a time: what is read and what is written then both stay in the cache.
  for (std::size_t first = 0; first < num_steps; first += row_multiple)
    for (std::size_t e = 0; e < experts; ++e)
      for (std::size_t t = first; t < std::min(first + row_multiple, num_steps); ++t)
        counts[e * length + t] = by_step[t * experts + e];
}

void share_out(const SearchProblem& problem, std::size_t expert, std::int32_t copies, Shares& shares) {
  const float* counts = problem.counts_of(expert);
  std::transform(counts, counts + problem.length, shares.begin() + static_cast<std::ptrdiff_t>(expert * problem.length),
                 [divisor = static_cast<float>(copies)](float tokens) { return tokens / divisor; });
}

Shares shares_of(const SearchProblem& problem, const Copies& copies) {
  Shares shares(problem.counts.size());
  for (std::size_t e = 0; e < problem.num_experts; ++e) share_out(problem, e, copies[e], shares);
  return shares;
}

double peak_sum(const SearchProblem& problem, const Shares& shares, const Slots& slots) {
  std::vector<float> peak(problem.length, 0.0F);
  std::vector<float> load(problem.length);
  for (std::size_t slot = 0; slot < problem.num_slots;) {
    std::fill(load.begin(), load.end(), 0.0F);
    for (const std::size_t end = slot + problem.slots_per_rank; slot < end; ++slot)
      add_row(load.data(), shares.data() + static_cast<std::size_t>(slots[slot]) * problem.length, problem.length);
    raise_row(peak.data(), load.data(), problem.length);
  }
  double sum = 0.0;
  for (const float of_step : peak) sum += static_cast<double>(of_step);
  return sum;
}

Copies count_copies(const SearchProblem& problem, std::span<const std::int32_t> slots) {
  Copies copies(problem.num_experts, 0);
  for (const std::int32_t expert : slots) ++copies[static_cast<std::size_t>(expert)];
  return copies;
}

}  // namespace thalweg::eplb
