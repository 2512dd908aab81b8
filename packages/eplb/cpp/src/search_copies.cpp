#include "thalweg/eplb/search_copies.hpp"

#include <algorithm>
#include <cmath>
#include <tuple>
#include <utility>
#include <vector>

#include "thalweg/eplb/lanes.hpp"

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
  const auto rank_of = [&](std::size_t e) { return std::tuple(gain[e], problem.expert_total[e] / copies[e], -copies[e]); };
  std::size_t best = problem.num_experts;
  for (std::size_t e = 0; e < problem.num_experts; ++e)
    if (copies[e] < most && (best == problem.num_experts || rank_of(e) > rank_of(best))) best = e;
  return best;
}

// The two largest loads per copy of a step.
struct Top {
  std::size_t expert = 0;
  double first = 0.0;
  double second = 0.0;
};

using DoubleLanes = double __attribute__((vector_size(32), aligned(8), may_alias));
constexpr std::size_t expert_multiple = 16;

// row has a multiple of expert_multiple numbers, none negative.
THALWEG_EACH_PROCESSOR double largest_of(const double* row, std::size_t length) {
  DoubleLanes largest[4] = {};
  for (std::size_t e = 0; e < length; e += expert_multiple)
    for (std::size_t part = 0; part < 4; ++part) {
      const DoubleLanes& value = *reinterpret_cast<const DoubleLanes*>(row + e + 4 * part);
      largest[part] = value > largest[part] ? value : largest[part];
    }
  double best = 0.0;
  for (const DoubleLanes& part : largest)
    for (std::size_t lane = 0; lane < 4; ++lane) best = std::max(best, part[lane]);
  return best;
}

Top top_of(double* row, std::size_t length) {
  Top top;
  top.first = largest_of(row, length);
  top.expert = static_cast<std::size_t>(std::find(row, row + length, top.first) - row);
  const double load = std::exchange(row[top.expert], 0.0);
  top.second = largest_of(row, length);
  row[top.expert] = load;
  return top;
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
  const std::size_t length = (problem.num_experts + expert_multiple - 1) / expert_multiple * expert_multiple;
  std::vector<double> loads(problem.num_steps * length, 0.0);  // per copy
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
      const double with_copy = static_cast<double>(problem.counts_of(e)[t]) / (copies[e] + 1);
      gain[e] += tops[t].first - std::max(tops[t].second, with_copy);
    }
    // A gain that is only rounding is none: it would hide the other reasons to choose.
    for (double& of_expert : gain) of_expert = std::nearbyint(of_expert * 1e6) / 1e6;
    const std::size_t chosen = choose(problem, copies, gain);
    ++copies[chosen];
    for (std::size_t t = 0; t < problem.num_steps; ++t) {
      const bool was_at_top = row(t)[chosen] >= tops[t].second;
      row(t)[chosen] = static_cast<double>(problem.counts_of(chosen)[t]) / copies[chosen];
      if (was_at_top) tops[t] = top_of(row(t), length);
    }
  }
  return copies;
}

}  // namespace thalweg::eplb
