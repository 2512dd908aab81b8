// The scheduler core alone: medians of planning and processing a decode step, without Python and without arrays of it.
// Usage: scheduler_step RUNNING WAITING STEPS DRAFTS ASYNC BUDGET (the last two 0 or 1); prints "plan_us process_us".
// Build: g++ -O3 -std=c++20 -I packages/scheduler/cpp/include scheduler_step.cpp packages/scheduler/cpp/src/*.cpp
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <random>
#include <vector>

#include "thalweg/scheduler/scheduler.hpp"

namespace {

using namespace thalweg::scheduler;
using Clock = std::chrono::steady_clock;

constexpr int block_size = 128;
constexpr int longest_prompt = 1024;
constexpr int num_samples = 16;  // prepared before the clock starts
constexpr int graph_interval = 8;

struct Case {
  int running, waiting, steps, drafts;
  bool is_async, has_budget;
};

double microseconds(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double, std::micro>(to - from).count();
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

Options options_for(const Case& measured) {
  Options options;
  const int running = measured.running;
  const int longest = longest_prompt + (measured.steps + 2) * (1 + measured.drafts);
  options.num_blocks = running * (longest / block_size + 2) * 10 / 8 + 2;
  options.num_state_slots = running + 2;
  options.block_size = block_size;
  options.draft_length = measured.drafts;
  options.tail_length = 3;
  options.vocab_size = 1 << 17;
  options.max_num_seqs = running;
  options.max_num_batched_tokens = running * longest_prompt;
  options.max_model_len = 1 << 20;
  options.chunked_prefill = true;
  options.prefill_max_sum_context = std::int64_t{1} << 40;
  options.prefill_interval_all = 70;
  options.prefill_interval_any = 100;
  options.prefill_interval_continue = 10;
  options.plans_ahead = measured.is_async;
  return options;
}

// Graphs every eight tokens: a floor, then a rise that makes about half of the drafts worth it.
std::vector<StepTime> step_times(int largest) {
  std::vector<StepTime> points;
  for (int size = graph_interval; size < largest; size += graph_interval)
    points.push_back({size, 10.0 + 20.0 * size / largest});
  points.push_back({largest, 30.0});
  return points;
}

// What the sampler would return: any number of drafts accepted, equally likely.
struct Sample {
  std::vector<std::int32_t> sampled, accepted, drafts;
  std::vector<float> confidences;

  Sample(std::size_t rows, std::size_t width, std::mt19937& random)
      : sampled(rows, 100), accepted(rows * width, -1), drafts(rows * width, 101), confidences(rows * width) {
    std::uniform_real_distribution<float> chance(0.0f, 1.0f);
    std::generate(confidences.begin(), confidences.end(), [&] { return chance(random); });
    for (std::size_t row = 0; row < rows; ++row)
      std::fill_n(accepted.begin() + static_cast<std::ptrdiff_t>(row * width), random() % (width + 1), 101);
  }

  StepResult result(std::int64_t step) const {
    StepResult result;
    result.step = step;
    result.sampled_token_ids = sampled;
    result.accepted_token_ids = accepted;
    result.draft_token_ids = drafts;
    result.confidences = confidences;
    return result;
  }
};

StepPlan plan_step(Scheduler& scheduler) {
  const Ballot ballot = scheduler.begin_step(scheduler.has_running(), scheduler.has_half_prefilled());
  const bool is_prefill = ballot.round != VoteRound::none && ballot.wants && scheduler.try_prefill();
  return scheduler.finish_step(is_prefill ? StepKind::prefill : StepKind::decode);
}

// Times every step; false when a step has not the rows it should.
bool run(const Case& measured, std::vector<double>& planning, std::vector<double>& processing) {
  Scheduler scheduler(options_for(measured));
  if (measured.has_budget) scheduler.set_step_time_curve(step_times(measured.running * (1 + measured.drafts)));
  std::mt19937 random(7);
  for (int i = 0; i < measured.running + measured.waiting; ++i) {
    const std::vector<std::int32_t> prompt(1 + random() % longest_prompt, 5);
    scheduler.add({.token_ids = prompt, .max_tokens = 1 << 19});
  }
  const auto rows = static_cast<std::size_t>(measured.running);
  if (plan_step(scheduler).sequence_ids.size() != rows) return false;
  scheduler.process(Sample(rows, 0, random).result(0));

  std::vector<Sample> samples;
  for (int i = 0; i < num_samples; ++i) samples.emplace_back(rows, static_cast<std::size_t>(measured.drafts), random);
  const int lag = measured.is_async ? 1 : 0;
  for (int step = 1; step <= measured.steps + lag; ++step) {
    const StepResult result = samples[static_cast<std::size_t>(step % num_samples)].result(step - lag);
    const auto begin = Clock::now();
    const StepPlan plan = plan_step(scheduler);
    planning.push_back(microseconds(begin, Clock::now()));
    if (plan.sequence_ids.size() != rows) return false;
    if (result.step > 0) {
      const auto ready = Clock::now();
      const StepOutcome outcome = scheduler.process(result);
      processing.push_back(microseconds(ready, Clock::now()));
    }
    if (measured.is_async) scheduler.correct(step);
  }
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 7) return EXIT_FAILURE;
  int values[6];
  for (int i = 0; i < 6; ++i) values[i] = std::atoi(argv[i + 1]);
  const Case measured{values[0], values[1], values[2], values[3], values[4] != 0, values[5] != 0};
  std::vector<double> planning, processing;
  if (!run(measured, planning, processing)) return EXIT_FAILURE;
  std::printf("%.2f %.2f\n", median(planning), median(processing));
  return EXIT_SUCCESS;
}
