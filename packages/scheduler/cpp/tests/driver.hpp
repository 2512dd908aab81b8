#pragma once

#include <numeric>
#include <vector>

#include "thalweg/scheduler/scheduler.hpp"

namespace thalweg::scheduler {

// Small and roomy; tests change what they are about.
inline Options small_options() {
  Options options;
  options.num_blocks = 33;
  options.num_state_slots = 11;
  options.block_size = 4;
  options.draft_length = 2;
  options.tail_length = 3;
  options.vocab_size = 1000;
  options.max_num_seqs = 8;
  options.max_num_batched_tokens = 64;
  options.max_model_len = 64;
  options.chunked_prefill = true;
  options.stop_preempted_request = false;
  options.prefill_max_sum_context = 1 << 20;
  options.prefill_interval_all = 4;
  options.prefill_interval_any = 6;
  options.prefill_interval_continue = 2;
  return options;
}

inline std::int64_t add(Scheduler& scheduler, std::int32_t prompt_length, std::int32_t max_tokens = 100,
                        bool is_structured = false) {
  std::vector<std::int32_t> prompt(static_cast<std::size_t>(prompt_length));
  std::iota(prompt.begin(), prompt.end(), 10);
  return scheduler.add({.token_ids = prompt,
                        .max_tokens = max_tokens,
                        .end_token = 1,
                        .is_structured = is_structured});
}

// Plan one step of a lone rank.
inline StepPlan plan(Scheduler& scheduler) {
  const Ballot ballot = scheduler.begin_step(scheduler.has_running(), scheduler.has_half_prefilled());
  const bool is_prefill = ballot.round != VoteRound::none && ballot.wants && scheduler.try_prefill();
  return scheduler.finish_step(is_prefill ? StepKind::prefill : StepKind::decode);
}

// Process a plan: `sampled` in every row after `num_accepted` accepted drafts with id 50.
inline StepOutcome process(Scheduler& scheduler, const StepPlan& plan, std::size_t num_accepted = 0,
                           std::int32_t sampled = 60, std::int8_t status = 0) {
  const std::size_t rows = plan.shape.rows;
  const std::size_t width = plan.shape.draft_width;
  const std::vector<std::int32_t> last(rows, sampled);
  const std::vector<std::int8_t> row_status(rows, status);
  std::vector<std::int32_t> accepted(rows * width, -1);
  const std::vector<std::int32_t> drafts(rows * width, 70);
  std::vector<float> confidences(rows * width, 0.5f);
  for (std::size_t i = 0; i < rows * width; ++i)
    if (i % width < num_accepted) accepted[i] = 50;
  return scheduler.process({.step = plan.step,
                            .sampled_token_ids = last,
                            .accepted_token_ids = accepted,
                            .draft_token_ids = drafts,
                            .confidences = confidences,
                            .row_status = row_status,
                            .has_row_status = status != 0});
}

inline void run_step(Scheduler& scheduler, std::size_t num_accepted = 0) {
  const StepPlan step = plan(scheduler);
  process(scheduler, step, num_accepted);
  scheduler.release(step.step);
}

template <class Values>
auto list(const Values& values) {
  return std::vector(values.begin(), values.end());
}

}  // namespace thalweg::scheduler
