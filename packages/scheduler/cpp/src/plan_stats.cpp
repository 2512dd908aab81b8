#include "thalweg/scheduler/plan_stats.hpp"

namespace thalweg::scheduler {
namespace {

void count_queues(const CoreState& state, StepStats& stats) {
  stats.num_running = static_cast<std::int64_t>(state.running.size());
  stats.num_waiting = static_cast<std::int64_t>(state.waiting.size());
  stats.num_chunked = static_cast<std::int64_t>(state.waiting.num_half_prefilled());
  stats.num_prompted = static_cast<std::int64_t>(state.prompted.size());
  stats.num_preempted = state.num_preempted;
  stats.num_aborted = state.num_aborted;
  stats.num_free_blocks = state.blocks.num_free();
  stats.num_free_state_slots = state.state_slots.num_free();
  stats.prompt_tokens_waiting = state.waiting.prompt_tokens();
  stats.prompt_tokens_chunked = state.waiting.prompt_tokens_half_prefilled();
}

std::int64_t sum_prompts(const std::vector<Sequence*>& sequences) {
  std::int64_t sum = 0;
  for (const Sequence* sequence : sequences) sum += sequence->prompt_length;
  return sum;
}

void count_finished(const Step& step, StepStats& stats) {
  stats.num_finished = static_cast<std::int64_t>(step.finished.size());
  stats.finished_prompt_tokens = sum_prompts(step.finished);
  for (const Sequence* sequence : step.finished) {
    const std::int64_t num_outputs = sequence->num_outputs();
    stats.finished_output_tokens += num_outputs;
    stats.finished_output_context += num_outputs * (num_outputs / 2 + sequence->prompt_length);
  }
}

void count_flops(const FlopsEstimator& estimator, const Step& step, const StepPlan& plan, StepStats& stats) {
  Flops sum;
  if (step.kind == StepKind::decode) {
    sum = estimator.estimate_decode(plan.query_lengths, plan.context_lengths);
  } else {
    for (std::size_t i = 0; i < plan.shape.rows; ++i)
      sum += estimator.estimate_unchecked({.query_length = plan.query_lengths[i],
                                           .context_length = plan.context_lengths[i],
                                           .is_prefill = true,
                                           .full_length = plan.committed_lengths[i]});
  }
  stats.attention_flops = static_cast<double>(sum.attention);
  stats.total_flops = static_cast<double>(sum.total);
}

}  // namespace

void count(const CoreState& state, const Step& step, StepPlan& plan) {
  StepStats& stats = plan.stats;
  count_queues(state, stats);
  count_finished(step, stats);
  if (state.flops.has_value()) count_flops(*state.flops, step, plan, stats);
  if (step.kind == StepKind::prefill) stats.prompt_tokens_running = sum_prompts(state.running);
}

}  // namespace thalweg::scheduler
