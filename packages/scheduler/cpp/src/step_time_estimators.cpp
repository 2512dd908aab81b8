#include "thalweg/scheduler/step_time_estimators.hpp"

#include <algorithm>

namespace thalweg::scheduler {

void SlopeEstimator::add(std::int64_t graph_size, double excess_ms) {
  if (samples_.size() < window) {
    samples_.emplace_back(graph_size, excess_ms);
  } else {
    const auto [old_size, old_ms] = std::exchange(samples_[oldest_], {graph_size, excess_ms});
    oldest_ = (oldest_ + 1) % window;
    change(old_size, [old_ms](RunningMedian& samples) { samples.erase(old_ms); });
  }
  change(graph_size, [excess_ms](RunningMedian& samples) { samples.insert(excess_ms); });
}

template <class Change>
void SlopeEstimator::change(std::int64_t graph_size, Change change) {
  RunningMedian& samples = by_size_.try_emplace(graph_size, &memory_).first->second;
  if (samples.size() >= min_samples) medians_.erase(samples.median());
  change(samples);
  if (samples.size() >= min_samples) medians_.insert(samples.median());
}

std::optional<double> RecentMedian::median() const noexcept {
  if (count_ < min_samples) return std::nullopt;
  auto sorted = values_;
  std::sort(sorted.begin(), sorted.begin() + static_cast<std::ptrdiff_t>(count_));
  const std::size_t middle = count_ / 2;
  return count_ % 2 == 1 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
}

}  // namespace thalweg::scheduler
