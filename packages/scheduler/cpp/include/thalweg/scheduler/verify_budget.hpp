#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "thalweg/scheduler/step_time_estimators.hpp"
#include "thalweg/scheduler/survival_order.hpp"

namespace thalweg::scheduler {

// One point of a measured curve: the time of a forward pass in the graph of that size.
struct StepTime {
  std::int64_t graph_size = 0;  // query tokens
  double time_ms = 0.0;
};

// Decides how many drafts of each sequence a decode step verifies: as many as give the most tokens per millisecond, and
// the likeliest ones of them.
//
// A step of B query tokens, N of them anchors, is expected to commit E(B) tokens (each sequence's own next token and
// the survival of every verified draft, best first) and takes the graph's time on the curve, plus a measured slope per
// token of the graph, plus the sampler's time. `thalweg.dspark.ThroughputBudget` is the same in Python.
class VerifyBudget {
 public:
  // Take a measured curve; what was learned against an earlier one is forgotten. Throws ConfigError unless sizes ascend
  // strictly from at least 1 and times are finite and positive.
  void set_step_time_curve(std::vector<StepTime> points);
  bool has_curve() const noexcept { return !curve_.empty(); }

  // Learn from a step: num_rows sequences in a graph of graph_size query tokens. Throws std::invalid_argument for sizes
  // below 1, a graph beyond the curve, and times that are negative or not finite.
  void record_step_time(std::int64_t num_rows, std::int64_t graph_size, double forward_ms, double sampler_ms);

  // lengths[i] = 1 + drafts of sequence i to verify, all of them without a curve.
  // Both survivals hold the drafts of sequence i at offsets[i]..offsets[i + 1], non-increasing in 0..1: the first
  // decides how many drafts the step verifies, the second whose; they may be the same memory. offsets ascend from 0 and
  // have one element more than lengths. Allocates nothing once it has seen as many drafts. Throws std::invalid_argument
  // for survival that is none, and when the largest graph does not hold one token per sequence.
  void verify_lengths(std::span<const float> budget_survival, std::span<const float> split_survival,
                      std::span<const std::int32_t> offsets, std::span<std::int32_t> lengths);

  // Measured time per query token beyond the curve; a negative one counts as 0 in the budget.
  double slope_ms() const noexcept { return slope_->slope_ms(); }
  std::optional<double> sampler_fallback_ms() const noexcept { return sampler_.fallback_ms(); }

 private:
  // The smallest B with the largest E(B) / time(B).
  std::size_t best_total(std::size_t num_rows, std::span<const float> best_first) const;

  std::vector<StepTime> curve_;
  std::unique_ptr<SlopeEstimator> slope_ = std::make_unique<SlopeEstimator>();
  SamplerTimeEstimator sampler_;
  SurvivalOrder order_;
};

}  // namespace thalweg::scheduler
