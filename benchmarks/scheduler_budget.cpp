// The verification budget alone: time to decide how many drafts each row of a decode step verifies.
// Usage: scheduler_budget ROWS STEPS ; prints "median_us p99_us" with the split from another round, the same with one
// round for both, and the median of recording a step time.
// Build: g++ -O3 -std=c++20 -ffp-contract=off -I packages/scheduler/cpp/include scheduler_budget.cpp
//   packages/scheduler/cpp/src/{verify_budget,step_time_estimators}.cpp
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <span>
#include <vector>

#include "thalweg/scheduler/survival.hpp"
#include "thalweg/scheduler/verify_budget.hpp"

namespace {

using namespace thalweg::scheduler;
using Clock = std::chrono::steady_clock;

constexpr std::size_t draft_length = 5;
constexpr int num_batches = 32;  // prepared before the clock starts; so many that no predictor learns them

template <class Work>
std::vector<double> time_us(int count, Work work) {
  std::vector<double> times;
  for (int i = 0; i < count; ++i) {
    const auto begin = Clock::now();
    work(i);
    times.push_back(std::chrono::duration<double, std::micro>(Clock::now() - begin).count());
  }
  std::sort(times.begin(), times.end());
  return times;
}

double median(const std::vector<double>& sorted) { return sorted[sorted.size() / 2]; }
double p99(const std::vector<double>& sorted) { return sorted[sorted.size() * 99 / 100]; }

// A time that rises faster with every token, as measured ones do, at every eighth size up to all drafts of all rows.
std::vector<StepTime> curve_for(std::size_t rows) {
  std::vector<StepTime> points;
  const auto largest = static_cast<std::int64_t>(rows * (1 + draft_length));
  for (std::int64_t size = 8; size <= largest; size += 8) {
    const double share = static_cast<double>(size) / static_cast<double>(largest);
    points.push_back({.graph_size = size, .time_ms = 10.0 + 4.0 * share + 6.0 * share * share});
  }
  return points;
}

std::vector<float> survival_for(std::size_t rows, std::mt19937& random) {
  std::vector<float> survival(rows * draft_length);
  std::uniform_real_distribution<float> confidence(0.4F, 1.0F);
  for (std::size_t row = 0; row < rows; ++row) {
    std::vector<float> confidences(draft_length);
    for (float& value : confidences) value = confidence(random);
    write_survival(confidences, 0.0F, std::span(survival).subspan(row * draft_length, draft_length));
  }
  return survival;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return EXIT_FAILURE;
  const auto rows = static_cast<std::size_t>(std::atoi(argv[1]));
  const int steps = std::atoi(argv[2]);
  std::mt19937 random(7);
  std::vector<std::vector<float>> batches;
  for (int i = 0; i < num_batches; ++i) batches.push_back(survival_for(rows, random));
  std::vector<std::int32_t> offsets(rows + 1);
  for (std::size_t i = 0; i <= rows; ++i) offsets[i] = static_cast<std::int32_t>(i * draft_length);

  VerifyBudget budget;
  const std::vector<StepTime> curve = curve_for(rows);
  budget.set_step_time_curve(curve);
  std::normal_distribution<double> noise(0.3, 0.1);
  const auto recording = time_us(std::max(steps, 10000), [&](int) {
    const auto [size, time_ms] = curve[random() % curve.size()];
    budget.record_step_time(static_cast<std::int64_t>(rows), size, time_ms + noise(random), 2.0 + noise(random));
  });

  std::vector<std::int32_t> lengths(rows);
  std::int64_t num_verified = 0;
  const auto decide = [&](int first, int second) {
    budget.verify_lengths(batches[static_cast<std::size_t>(first % num_batches)],
                          batches[static_cast<std::size_t>(second % num_batches)], offsets, lengths);
    num_verified += lengths[0];
  };
  const auto two_rounds = time_us(steps, [&](int i) { decide(i, i + 1); });
  const auto one_round = time_us(steps, [&](int i) { decide(i, i); });
  if (num_verified < 2 * steps) return EXIT_FAILURE;
  std::printf("%.2f %.2f %.2f %.2f %.3f\n", median(two_rounds), p99(two_rounds), median(one_round), p99(one_round),
              median(recording));
  return EXIT_SUCCESS;
}
