#include "thalweg/scheduler/decode.hpp"

#include "check.hpp"
#include "driver.hpp"

using namespace thalweg::scheduler;

namespace {

void rows_are_ordered_by_length_and_carry_their_drafts() {
  Scheduler scheduler(small_options());
  for (const std::int32_t length : {3, 9, 6}) add(scheduler, length);
  run_step(scheduler);
  const StepPlan first = plan(scheduler);
  CHECK((list(first.sequence_ids) == std::vector<std::int64_t>{1, 2, 0}));
  CHECK((list(first.context_lengths) == std::vector<std::int32_t>{12, 9, 6}));
  CHECK(first.draft_token_ids[0] == 999 && first.draft_read_slots[0] == 0 && first.draft_write_slots[0] == 2);
  process(scheduler, first, 2);
  const StepPlan second = plan(scheduler);
  CHECK(second.draft_token_ids[0] == 70 && second.draft_read_slots[0] == 2);
  CHECK((list(second.tail_token_ids.first(3)) == std::vector<std::int32_t>{50, 50, 60}));
  CHECK(second.committed_lengths[0] == 13 && second.prompt_lengths[0] == 9);
}

Options cornered_options(bool stops) {
  Options options = small_options();
  options.num_blocks = 5;
  options.stop_preempted_request = stops;
  return options;
}

// Two sequences of four tokens, the first one ahead, in a pool of four blocks: decode until one lacks a block.
StepPlan decode_until_short(Scheduler& scheduler, bool is_structured) {
  add(scheduler, 4, 100, is_structured);
  run_step(scheduler);
  run_step(scheduler);
  add(scheduler, 4, 100, is_structured);
  for (int i = 0; i < 50; ++i) {
    StepPlan step = plan(scheduler);
    if (!step.restarted_ids.empty() || !step.dropped_ids.empty()) return step;
    process(scheduler, step);
  }
  CHECK(false);
  return {};
}

void the_longest_output_is_recomputed_when_blocks_run_out() {
  Scheduler scheduler(cornered_options(false));
  const StepPlan step = decode_until_short(scheduler, false);
  CHECK((list(step.restarted_ids) == std::vector<std::int64_t>{0}));
  CHECK((list(step.sequence_ids) == std::vector<std::int64_t>{1}));
  const Sequence& victim = *scheduler.state().sequences.find(0);
  CHECK(victim.status == Status::waiting && victim.computed == 0 && victim.num_drafts == 0 && !victim.owns_memory());
  CHECK(victim.num_outputs() > 0 && victim.draft_slot == 0);
}

void a_structured_or_stopped_victim_ends() {
  for (const bool is_structured : {false, true}) {
    Scheduler scheduler(cornered_options(!is_structured));
    const StepPlan step = decode_until_short(scheduler, is_structured);
    CHECK(step.dropped_ids[0] == 0 && step.restarted_ids.empty());
    const StepOutcome outcome = process(scheduler, step);
    CHECK(outcome.closed_ids[0] == 0);
    CHECK(outcome.closed_reasons[0] == static_cast<std::int8_t>(Status::finished_preempted));
    CHECK(scheduler.state().sequences.find(0) == nullptr);
  }
}

void a_sequence_that_outgrows_the_pool_ends_without_evicting_anybody() {
  Options options = cornered_options(false);
  Scheduler scheduler(options);
  add(scheduler, 12);
  StepPlan step = plan(scheduler);
  while (step.dropped_ids.empty()) {
    process(scheduler, step);
    step = plan(scheduler);
  }
  CHECK(step.restarted_ids.empty() && step.sequence_ids.empty());
}

}  // namespace

int main() {
  rows_are_ordered_by_length_and_carry_their_drafts();
  the_longest_output_is_recomputed_when_blocks_run_out();
  a_structured_or_stopped_victim_ends();
  a_sequence_that_outgrows_the_pool_ends_without_evicting_anybody();
}
