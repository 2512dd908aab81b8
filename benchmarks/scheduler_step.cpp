// The scheduler core alone: medians of planning and processing a decode step, without Python and without arrays of it.
// Usage: scheduler_step RUNNING WAITING STEPS ; prints "plan_us process_us".
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

constexpr int draft_length = 5;
constexpr int block_size = 128;
constexpr int longest_prompt = 1024;
constexpr int num_samples = 16;  // prepared before the clock starts

double microseconds(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double, std::micro>(to - from).count();
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

Options options_for(int running, int steps) {
  Options options;
  const int longest = longest_prompt + (steps + 1) * (1 + draft_length);
  options.num_blocks = running * (longest / block_size + 2) * 10 / 8 + 2;
  options.num_state_slots = running + 2;
  options.block_size = block_size;
  options.draft_length = draft_length;
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
  return options;
}

// What the sampler would return: any number of drafts accepted, equally likely.
struct Sample {
  std::vector<std::int32_t> sampled, accepted, drafts;
  std::vector<float> confidences;

  Sample(std::size_t rows, std::size_t width, std::mt19937& random)
      : sampled(rows, 100), accepted(rows * width, -1), drafts(rows * width, 101), confidences(rows * width, 0.5f) {
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

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) return EXIT_FAILURE;
  const int running = std::atoi(argv[1]);
  const int waiting = std::atoi(argv[2]);
  const int steps = std::atoi(argv[3]);
  Scheduler scheduler(options_for(running, steps));
  std::mt19937 random(7);
  for (int i = 0; i < running + waiting; ++i) {
    const std::vector<std::int32_t> prompt(1 + random() % longest_prompt, 5);
    scheduler.add({.token_ids = prompt, .max_tokens = 1 << 19});
  }
  const auto rows = static_cast<std::size_t>(running);
  if (plan_step(scheduler).sequence_ids.size() != rows) return EXIT_FAILURE;
  scheduler.process(Sample(rows, 0, random).result(0));

  std::vector<Sample> samples;
  for (int i = 0; i < num_samples; ++i) samples.emplace_back(rows, draft_length, random);
  std::vector<double> planning, processing;
  for (int step = 1; step <= steps; ++step) {
    const StepResult result = samples[static_cast<std::size_t>(step % num_samples)].result(step);
    const auto begin = Clock::now();
    const StepPlan plan = plan_step(scheduler);
    const auto planned = Clock::now();
    if (plan.sequence_ids.size() != rows) return EXIT_FAILURE;
    const auto ready = Clock::now();
    const StepOutcome outcome = scheduler.process(result);
    const auto processed = Clock::now();
    planning.push_back(microseconds(begin, planned));
    processing.push_back(microseconds(ready, processed));
  }
  std::printf("%.2f %.2f\n", median(planning), median(processing));
  return EXIT_SUCCESS;
}
