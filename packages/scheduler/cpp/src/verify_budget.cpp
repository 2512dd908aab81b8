#include "thalweg/scheduler/verify_budget.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <stdexcept>
#include <string>
#include <utility>

#include "thalweg/scheduler/errors.hpp"

namespace thalweg::scheduler {

namespace {

// As few digits as tell the number apart from its neighbours.
template <class Number>
std::string shown(Number number) {
  std::array<char, 32> text{};
  return {text.data(), std::to_chars(text.data(), text.data() + text.size(), number).ptr};
}

void check_curve(std::span<const StepTime> points) {
  if (points.empty())
    throw ConfigError("points is empty; the curve needs at least one point (graph size, milliseconds)");
  for (std::size_t i = 0; i < points.size(); ++i) {
    const auto [size, time_ms] = points[i];
    const std::string name = "points[" + std::to_string(i) + "]";
    if (size < 1) throw ConfigError(name + " has size " + std::to_string(size) + "; sizes are at least 1");
    if (i > 0 && size <= points[i - 1].graph_size)
      throw ConfigError(name + " has size " + std::to_string(size) + " after " +
                        std::to_string(points[i - 1].graph_size) + "; sizes must ascend strictly");
    if (!std::isfinite(time_ms) || time_ms <= 0.0)
      throw ConfigError(name + " takes " + shown(time_ms) + " ms; times must be finite and above 0");
  }
}

// One comparison per draft covers a number that is none, one outside 0..1, and one that increases.
bool is_survival(std::span<const float> survival, std::span<const std::int32_t> offsets) noexcept {
  bool is_fine = true;
  for (std::size_t i = 0; i + 1 < offsets.size(); ++i) {
    float previous = 1.0F;
    for (auto j = static_cast<std::size_t>(offsets[i]); j < static_cast<std::size_t>(offsets[i + 1]); ++j) {
      is_fine &= survival[j] >= 0.0F && survival[j] <= previous;
      previous = survival[j];
    }
  }
  return is_fine;
}

[[noreturn]] void refuse_survival(const std::string& name, std::span<const float> survival,
                                  std::span<const std::int32_t> offsets) {
  for (std::size_t i = 0; i + 1 < offsets.size(); ++i) {
    const auto row = survival.subspan(static_cast<std::size_t>(offsets[i]),
                                      static_cast<std::size_t>(offsets[i + 1] - offsets[i]));
    const std::string where = name + "[" + std::to_string(i) + "]";
    for (std::size_t j = 0; j < row.size(); ++j)
      if (!(row[j] >= 0.0F && row[j] <= 1.0F))
        throw std::invalid_argument(where + "[" + std::to_string(j) + "] is " + shown(row[j]) +
                                    "; survival is a number from 0 to 1");
    for (std::size_t j = 1; j < row.size(); ++j)
      if (row[j] > row[j - 1])
        throw std::invalid_argument(where + " goes from " + shown(row[j - 1]) + " to " +
                                    shown(row[j]) + " at draft " + std::to_string(j) +
                                    "; survival never increases");
  }
  throw InvariantError(name + " is refused without a reason");
}

void check_survival(const char* name, std::span<const float> survival, std::span<const std::int32_t> offsets) {
  if (survival.size() != static_cast<std::size_t>(offsets.back()))
    throw std::invalid_argument(std::string(name) + " has " + std::to_string(survival.size()) + " drafts; offsets end at " +
                                std::to_string(offsets.back()));
  if (!is_survival(survival, offsets)) refuse_survival(name, survival, offsets);
}

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
  for (const auto& [name, size] : {std::pair("num_rows", num_rows), std::pair("graph_size", graph_size)})
    if (size < 1) throw std::invalid_argument(std::string(name) + " is " + std::to_string(size) + "; at least 1 is needed");
  for (const auto& [name, time_ms] : {std::pair("forward_ms", forward_ms), std::pair("sampler_ms", sampler_ms)})
    if (!std::isfinite(time_ms) || time_ms < 0.0)
      throw std::invalid_argument(std::string(name) + " is " + shown(time_ms) +
                                  "; it must be finite and at least 0");
  if (has_curve()) {
    const auto graph = std::lower_bound(curve_.begin(), curve_.end(), graph_size,
                                        [](const StepTime& point, std::int64_t size) { return point.graph_size < size; });
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
    throw std::invalid_argument(std::to_string(num_rows) + " sequences are more than the largest graph of the curve holds, " +
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
