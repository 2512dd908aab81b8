#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory_resource>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "thalweg/scheduler/running_median.hpp"

namespace thalweg::scheduler {

// Milliseconds per query token that steps take beyond the curve: the median of the medians of every graph size. Each
// size has the same weight however often it runs, and no outlier moves the result.
class SlopeEstimator {
 public:
  static constexpr std::size_t window = 5000;     // samples that count, over all graph sizes
  static constexpr std::size_t min_samples = 10;  // of one graph size before its median counts

  // excess_ms: (forward time - the curve's time) / graph size, of one step.
  void add(std::int64_t graph_size, double excess_ms);

  // As measured, so possibly negative; 0 before any graph size has enough samples.
  double slope_ms() const noexcept { return medians_.size() > 0 ? medians_.median() : 0.0; }

 private:
  // Change the samples of one size and keep its median among the others'.
  template <class Change>
  void change(std::int64_t graph_size, Change change);

  std::pmr::unsynchronized_pool_resource memory_;  // outlives the containers that take from it
  std::vector<std::pair<std::int64_t, double>> samples_;  // a ring once it holds `window`
  std::size_t oldest_ = 0;
  std::unordered_map<std::int64_t, RunningMedian> by_size_;
  RunningMedian medians_{&memory_};
};

// The median of the last nine values, from five on.
class RecentMedian {
 public:
  void add(double value) noexcept {
    values_[next_] = value;
    next_ = (next_ + 1) % values_.size();
    if (count_ < values_.size()) ++count_;
  }

  std::optional<double> median() const noexcept;

 private:
  static constexpr std::size_t min_samples = 5;

  std::array<double, 9> values_{};
  std::size_t next_ = 0;
  std::size_t count_ = 0;
};

// Milliseconds of everything after the forward pass.
class SamplerTimeEstimator {
 public:
  void add(std::int64_t num_rows, double sampler_ms) {
    all_.add(sampler_ms);
    by_rows_[num_rows].add(sampler_ms);
  }

  // Of steps with exactly that many rows; else of all steps; 0 while too few were seen.
  double time_ms(std::int64_t num_rows) const noexcept {
    const auto same_rows = by_rows_.find(num_rows);
    const auto median = same_rows == by_rows_.end() ? std::nullopt : same_rows->second.median();
    return median ? *median : fallback_ms().value_or(0.0);
  }

  // Of all steps; nothing while too few were seen.
  std::optional<double> fallback_ms() const noexcept { return all_.median(); }

 private:
  RecentMedian all_;
  std::unordered_map<std::int64_t, RecentMedian> by_rows_;
};

}  // namespace thalweg::scheduler
