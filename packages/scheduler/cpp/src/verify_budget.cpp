#include "thalweg/scheduler/verify_budget.hpp"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>

#include "budget_checks.hpp"

namespace thalweg::scheduler {

namespace {

// 1 + how many drafts each row has among those before the cut; of equals the lower row goes first.
void count_verified(Cut cut, std::span<const float> survival, std::span<const std::int32_t> offsets,
                    std::span<std::int32_t> lengths) noexcept {
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    std::int32_t num_above = 0;
    std::int32_t num_equal = 0;
    for (auto j = static_cast<std::size_t>(offsets[i]); j < static_cast<std::size_t>(offsets[i + 1]); ++j) {
      num_above += survival[j] > cut.value;
      num_equal += survival[j] == cut.value;
    }
    num_equal = std::min(num_equal, cut.num_equal);
    cut.num_equal -= num_equal;
    lengths[i] = 1 + num_above + num_equal;
  }
}

}  // namespace

void VerifyBudget::set_step_time_curve(std::vector<StepTime> points) {
  check_curve(points);
  curve_ = std::move(points);
  slope_ = std::make_unique<SlopeEstimator>();
}

void VerifyBudget::record_step_time(std::int64_t num_rows, std::int64_t graph_size, double forward_ms,
                                    double sampler_ms) {
  check_size("num_rows", num_rows);
  check_size("graph_size", graph_size);
  check_time("forward_ms", forward_ms);
  check_time("sampler_ms", sampler_ms);
  if (has_curve()) {
    const auto is_smaller = [](const StepTime& point, std::int64_t size) { return point.graph_size < size; };
    const auto graph = std::lower_bound(curve_.begin(), curve_.end(), graph_size, is_smaller);
    if (graph == curve_.end())
      throw std::invalid_argument("graph_size is " + std::to_string(graph_size) +
                                  "; the largest graph of the curve is " + std::to_string(curve_.back().graph_size));
    slope_->add(graph_size, (forward_ms - graph->time_ms) / static_cast<double>(graph_size));
  }
  sampler_.add(num_rows, sampler_ms);
}

void VerifyBudget::verify_lengths(std::span<const float> budget_survival, std::span<const float> split_survival,
                                  std::span<const std::int32_t> offsets, std::span<std::int32_t> lengths) {
  const std::size_t num_rows = lengths.size();
  check_survival("budget_survival", budget_survival, offsets);
  check_survival("split_survival", split_survival, offsets);
  if (!has_curve() || num_rows == 0) {
    for (std::size_t i = 0; i < num_rows; ++i) lengths[i] = 1 + offsets[i + 1] - offsets[i];
    return;
  }
  const std::size_t num_verified = best_total(num_rows, order_.sort(budget_survival)) - num_rows;
  if (num_verified == 0) std::fill(lengths.begin(), lengths.end(), 1);
  else count_verified(order_.cut(split_survival, num_verified), split_survival, offsets, lengths);
}

std::size_t VerifyBudget::best_total(std::size_t num_rows, std::span<const float> best_first) const {
  const auto largest = static_cast<std::size_t>(curve_.back().graph_size);
  if (num_rows > largest)
    throw std::invalid_argument(std::to_string(num_rows) +
                                " sequences are more than the largest graph of the curve holds, " +
                                std::to_string(largest));
  const double slope_ms = std::max(0.0, slope_->slope_ms());
  const double sampler_ms = sampler_.time_ms(static_cast<std::int64_t>(num_rows));
  const std::size_t end = std::min(num_rows + best_first.size(), largest) + 1;

  auto expected = static_cast<float>(num_rows);
  std::size_t best = num_rows;
  double best_throughput = -1.0;
  std::size_t total = num_rows;
  for (const auto& [graph_size, time_ms] : curve_) {
    const double step_ms = time_ms + slope_ms * static_cast<double>(graph_size) + sampler_ms;
    for (; total < end && total <= static_cast<std::size_t>(graph_size); ++total) {
      if (total > num_rows) expected += best_first[total - num_rows - 1];
      const double throughput = static_cast<double>(expected) / step_ms;
      if (throughput > best_throughput) {
        best_throughput = throughput;
        best = total;
      }
    }
  }
  return best;
}

}  // namespace thalweg::scheduler
