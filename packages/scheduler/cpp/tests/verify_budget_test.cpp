#include "thalweg/scheduler/verify_budget.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <random>
#include <stdexcept>
#include <vector>

#include "check.hpp"
#include "thalweg/scheduler/errors.hpp"
#include "thalweg/scheduler/running_median.hpp"

using namespace thalweg::scheduler;

namespace {

using Floats = std::vector<float>;
using Lengths = std::vector<std::int32_t>;

const std::vector<StepTime> toy_curve{{4, 18.0}, {6, 19.0}, {8, 21.0}, {12, 25.0}};
const Floats toy_survival{0.95F, 0.85F, 0.6F, 0.3F, 0.1F, 0.7F, 0.4F, 0.2F, 0.1F, 0.05F};

Lengths lengths_of(VerifyBudget& budget, const Floats& survival, const Lengths& offsets) {
  Lengths lengths(offsets.size() - 1);
  budget.verify_lengths(survival, survival, offsets, lengths);
  return lengths;
}

void check_order() {
  std::mt19937 random(5);
  SurvivalOrder order;
  for (const int range : {1, 3, 100, 1 << 20}) {
    for (const std::size_t count : {0, 1, 2, 95, 96, 97, 500, 5120}) {
      Floats values(count);
      for (float& value : values) value = static_cast<float>(random() % static_cast<unsigned>(range + 1)) / range;
      if (count > 2) values[1] = -0.0F;
      Floats expected = values;
      std::sort(expected.begin(), expected.end(), std::greater());
      const auto sorted = order.sort(values);
      CHECK(std::equal(sorted.begin(), sorted.end(), expected.begin(), expected.end()));
      for (std::size_t inside = 1; inside <= count; inside += 1 + count / 20) {
        const Cut cut = order.cut(values, inside);
        CHECK(cut.value == expected[inside - 1]);
        const auto end = expected.begin() + static_cast<std::ptrdiff_t>(inside);
        CHECK(cut.num_equal == std::count(expected.begin(), end, cut.value));
      }
    }
  }
}

void check_running_median() {
  std::mt19937 random(5);
  std::pmr::unsynchronized_pool_resource memory;
  RunningMedian running(&memory);
  std::vector<double> values;
  for (int i = 0; i < 3000; ++i) {
    if (!values.empty() && random() % 5 < 2) {
      const std::size_t at = random() % values.size();
      running.erase(values[at]);
      values.erase(values.begin() + static_cast<std::ptrdiff_t>(at));
    } else {
      values.push_back(static_cast<double>(random() % 40));
      running.insert(values.back());
    }
    CHECK(running.size() == values.size());
    if (values.empty()) continue;
    std::vector<double> sorted = values;
    std::sort(sorted.begin(), sorted.end());
    CHECK(running.median() == (sorted[(sorted.size() - 1) / 2] + sorted[sorted.size() / 2]) / 2);
  }
}

void check_choice() {
  VerifyBudget budget;
  CHECK((lengths_of(budget, toy_survival, {0, 5, 10}) == Lengths{6, 6}));  // no curve yet
  budget.set_step_time_curve(toy_curve);
  CHECK((lengths_of(budget, toy_survival, {0, 5, 10}) == Lengths{5, 3}));
  CHECK(lengths_of(budget, {}, {0}).empty());
  CHECK((lengths_of(budget, {}, {0, 0, 0}) == Lengths{1, 1}));
}

void check_two_rounds() {
  VerifyBudget budget;
  budget.set_step_time_curve(toy_curve);
  Floats swapped(toy_survival.begin() + 5, toy_survival.end());
  swapped.insert(swapped.end(), toy_survival.begin(), toy_survival.begin() + 5);
  Lengths lengths(2);
  budget.verify_lengths(toy_survival, swapped, Lengths{0, 5, 10}, lengths);
  CHECK((lengths == Lengths{3, 5}));
}

void check_learning() {
  VerifyBudget budget;
  budget.set_step_time_curve(toy_curve);
  for (int i = 0; i < 10; ++i) budget.record_step_time(2, 5, 49.0, 1.0);
  CHECK(budget.slope_ms() == 6.0);  // above the curve's 19 ms at size 6
  CHECK(budget.sampler_fallback_ms() == 1.0);
  budget.set_step_time_curve(toy_curve);
  CHECK(budget.slope_ms() == 0.0);
  CHECK(budget.sampler_fallback_ms() == 1.0);
}

void check_errors() {
  VerifyBudget budget;
  constexpr double infinity = std::numeric_limits<double>::infinity();
  const auto curve = [&](std::vector<StepTime> points) {
    return [&budget, points] { budget.set_step_time_curve(points); };
  };
  check_throws<ConfigError>(curve({}), "points is empty");
  check_throws<ConfigError>(curve({{0, 1.0}}), "points[0] has size 0");
  check_throws<ConfigError>(curve({{4, 1.0}, {4, 2.0}}), "points[1] has size 4 after 4");
  check_throws<ConfigError>(curve({{4, infinity}}), "points[0] takes inf ms");
  check_throws<ConfigError>(curve({{4, 0.0}}), "points[0] takes 0");
  CHECK(!budget.has_curve());

  budget.set_step_time_curve({{1, 10.0}});
  const auto lengths = [&](Floats survival, Lengths offsets) {
    return [&budget, survival, offsets] { lengths_of(budget, survival, offsets); };
  };
  check_throws<std::invalid_argument>(lengths({}, {0, 0, 0}), "2 sequences");
  check_throws<std::invalid_argument>(lengths({0.5F}, {0, 2}), "offsets end at 2");
  check_throws<std::invalid_argument>(lengths({std::nanf("")}, {0, 1}), "budget_survival[0][0] is nan");
  check_throws<std::invalid_argument>(lengths({1.5F}, {0, 1}), "1.5");
  check_throws<std::invalid_argument>(lengths({0.25F, 0.5F}, {0, 2}), "increases");
  check_throws<std::invalid_argument>([&] { budget.record_step_time(1, 2, 1.0, 1.0); }, "graph_size is 2");
  check_throws<std::invalid_argument>([&] { budget.record_step_time(0, 1, 1.0, 1.0); }, "num_rows is 0");
  check_throws<std::invalid_argument>([&] { budget.record_step_time(1, 1, infinity, 1.0); }, "forward_ms is inf");
  check_throws<std::invalid_argument>([&] { budget.record_step_time(1, 1, 1.0, -1.0); }, "sampler_ms is -1");
}

}  // namespace

int main() {
  check_order();
  check_running_median();
  check_choice();
  check_two_rounds();
  check_learning();
  check_errors();
}
