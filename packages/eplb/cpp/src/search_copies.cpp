#include "thalweg/eplb/search_copies.hpp"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "thalweg/eplb/lanes.hpp"
#include "thalweg/eplb/search_kernels.hpp"

namespace thalweg::eplb {
namespace {

// load^48.
double to_copy_power(double load) {
  load *= load;
  load *= load;
  load *= load;
  load *= load;
  return load * load * load;
}

// copies^-47.
double inverse_power(std::int32_t copies) {
  const double inverse = 1.0 / copies;
  return to_copy_power(inverse) * copies;
}

// The expert that the next slot goes to.
std::size_t choose(const SearchProblem& problem, const Copies& copies, const std::vector<double>& gain) {
  const auto most = static_cast<std::int32_t>(problem.num_ranks * problem.copies_on_rank);
  const auto is_better = [&](std::size_t e, std::size_t than) {
    if (gain[e] != gain[than]) return gain[e] > gain[than];
    const auto load_of = [&](std::size_t expert) { return problem.expert_total[expert] / copies[expert]; };
    return std::pair(load_of(e), -copies[e]) > std::pair(load_of(than), -copies[than]);
  };
  std::size_t best = problem.num_experts;
  for (std::size_t e = 0; e < problem.num_experts; ++e)
    if (copies[e] < most && (best == problem.num_experts || is_better(e, best))) best = e;
  return best;
}

// The two largest loads per copy of a step.
struct Top {
  std::size_t expert = 0;
  float first = 0.0F;
  float second = 0.0F;
};

Top top_of(float* row, std::size_t length) {
  Top top;
  top.expert = largest_place(row, length);
  top.first = std::exchange(row[top.expert], -1.0F);
  top.second = std::max(row[largest_place(row, length)], 0.0F);
  row[top.expert] = top.first;
  return top;
}

// What the largest load per copy falls by if its expert gets one more. Loads that differ by rounding alone are equal.
double fall_of(const Top& top, float with_copy) {
  const float fall = top.first - std::max(top.second, with_copy);
  return fall > top.first * 0x1p-20F ? static_cast<double>(fall) : 0.0;
}

}  // namespace

Copies power_copies(const SearchProblem& problem) {
  Copies copies(problem.num_experts, 1);
  // Parts of the step's tokens instead of tokens: a step that is ten times larger shall weigh ten times, not 10^48.
  std::vector<double> scale(problem.num_steps, 0.0);
  double largest = 0.0;
  for (std::size_t t = 0; t < problem.num_steps; ++t) {
    if (problem.step_total[t] == 0.0) continue;
    const float* row = problem.by_step.data() + t * problem.num_experts;
    scale[t] = 1.0 / problem.step_total[t];
    largest = std::max(largest, static_cast<double>(*std::max_element(row, row + problem.num_experts)) * scale[t]);
  }
  for (double& of_step : scale) of_step /= largest > 0.0 ? largest : 1.0;
  std::vector<double> amount(problem.num_experts, 0.0);
  std::vector<double> gain(problem.num_experts, 0.0);
  const auto gain_of = [&](std::size_t e) {
    return amount[e] * (inverse_power(copies[e]) - inverse_power(copies[e] + 1));
  };
  for (std::size_t e = 0; e < problem.num_experts; ++e) {
    for (std::size_t t = 0; t < problem.num_steps; ++t)
      amount[e] += problem.step_total[t] * to_copy_power(static_cast<double>(problem.counts_of(e)[t]) * scale[t]);
    gain[e] = gain_of(e);
  }
  for (std::size_t slot = problem.num_experts; slot < problem.num_slots; ++slot) {
    const std::size_t e = choose(problem, copies, gain);
    ++copies[e];
    gain[e] = gain_of(e);
  }
  return copies;
}

Copies peak_copies(const SearchProblem& problem) {
  Copies copies(problem.num_experts, 1);
  const std::size_t length = (problem.num_experts + lane_count - 1) / lane_count * lane_count;
  std::vector<float> loads(problem.num_steps * length, 0.0F);  // per copy
  std::vector<Top> tops(problem.num_steps);
  const auto row = [&](std::size_t t) { return loads.data() + t * length; };
  for (std::size_t t = 0; t < problem.num_steps; ++t) {
    std::copy_n(problem.by_step.data() + t * problem.num_experts, problem.num_experts, row(t));
    tops[t] = top_of(row(t), length);
  }
  std::vector<double> gain(problem.num_experts);
  for (std::size_t slot = problem.num_experts; slot < problem.num_slots; ++slot) {
    std::fill(gain.begin(), gain.end(), 0.0);
    for (std::size_t t = 0; t < problem.num_steps; ++t) {
      const std::size_t e = tops[t].expert;
      gain[e] += fall_of(tops[t], problem.counts_of(e)[t] / static_cast<float>(copies[e] + 1));
    }
    const std::size_t chosen = choose(problem, copies, gain);
    const auto divisor = static_cast<float>(++copies[chosen]);
    for (std::size_t t = 0; t < problem.num_steps; ++t) {
      const bool was_at_top = row(t)[chosen] >= tops[t].second;
      row(t)[chosen] = problem.counts_of(chosen)[t] / divisor;
      if (was_at_top) tops[t] = top_of(row(t), length);
    }
  }
  return copies;
}

}  // namespace thalweg::eplb
