#include "thalweg/scheduler/prefill.hpp"

#include "check.hpp"
#include "driver.hpp"

using namespace thalweg::scheduler;

namespace {

void a_long_prompt_is_cut_at_the_budget_and_goes_on_first() {
  Options options = small_options();
  options.max_num_batched_tokens = 24;
  Scheduler scheduler(options);
  add(scheduler, 20);
  add(scheduler, 30);
  add(scheduler, 4);
  const StepPlan first = plan(scheduler);
  CHECK((list(first.query_lengths) == std::vector<std::int32_t>{20, 4}));
  CHECK((list(first.context_lengths) == std::vector<std::int32_t>{20, 4}));
  CHECK((list(first.next_token_ids) == std::vector<std::int32_t>{-1, 14}));
  CHECK((list(first.tail_token_ids) == std::vector<std::int32_t>{-1, -1, 10, -1, -1, 10}));
  CHECK(first.block_offsets[2] - first.block_offsets[1] == 8);  // all blocks of the prompt come with its first chunk
  process(scheduler, first);
  CHECK(scheduler.has_half_prefilled());
  const StepPlan second = plan(scheduler);
  CHECK((list(second.sequence_ids) == std::vector<std::int64_t>{1}));
  CHECK(second.query_lengths[0] == 24 && second.context_lengths[0] == 28 && second.token_ids[0] == 14);
  CHECK((list(second.tail_token_ids) == std::vector<std::int32_t>{12, 13, 14}));
}

void chunks_are_charged_in_multiples_of_the_alignment() {
  Options options = small_options();
  options.max_num_batched_tokens = 18;
  options.chunk_alignment = 4;
  Scheduler scheduler(options);
  add(scheduler, 5);
  add(scheduler, 30);
  const StepPlan step = plan(scheduler);
  CHECK((list(step.query_lengths) == std::vector<std::int32_t>{5, 8}));
  CHECK(step.num_batched_tokens == 16);
}

void prompts_that_can_never_run_are_dropped() {
  Scheduler scheduler(small_options());
  add(scheduler, 65);
  const StepPlan step = plan(scheduler);
  CHECK(step.kind == StepKind::prefill && step.sequence_ids.empty() && step.dropped_ids.size() == 1);
  const StepOutcome outcome = process(scheduler, step);
  CHECK(outcome.closed_reasons[0] == static_cast<std::int8_t>(Status::finished_ignored));
  CHECK(scheduler.state().sequences.size() == 0);

  Options options = small_options();
  options.num_blocks = 5;  // four blocks of four tokens: sixteen is one too many, the null block counts
  Scheduler tight(options);
  add(tight, 17);
  add(tight, 16);
  const StepPlan next = plan(tight);
  CHECK((list(next.dropped_ids) == std::vector<std::int64_t>{0}));
  CHECK((list(next.sequence_ids) == std::vector<std::int64_t>{1}));
}

void new_prompts_stay_out_above_the_watermark() {
  Options options = small_options();
  options.num_blocks = 10;
  Scheduler scheduler(options);
  CoreState state(options);
  state.waiting.push_new(state.sequences.create());
  const std::vector<std::int32_t> eight = state.blocks.allocate(8);
  CHECK(wants_prefill(state));  // nine of ten, the null block included, is exactly the mark
  state.blocks.allocate(1);
  CHECK(!wants_prefill(state));
}

}  // namespace

int main() {
  a_long_prompt_is_cut_at_the_budget_and_goes_on_first();
  chunks_are_charged_in_multiples_of_the_alignment();
  prompts_that_can_never_run_are_dropped();
  new_prompts_stay_out_above_the_watermark();
}
