// Engines that only prefill, and engines that only decode.
#include <numeric>
#include <stdexcept>

#include "check.hpp"
#include "driver.hpp"

using namespace thalweg::scheduler;
using Ids = std::vector<std::int64_t>;

namespace {

Options options_of(EngineType type) {
  Options options = small_options();
  options.engine_type = type;
  options.stop_preempted_request = true;
  return options;
}

StepPlan prefill(Scheduler& scheduler) {
  CHECK(scheduler.begin_step(false, false).round == VoteRound::prefill);
  scheduler.try_prefill();
  return scheduler.finish_step(StepKind::prefill);
}

void completed_prompts_are_handed_over() {
  Scheduler scheduler(options_of(EngineType::prompt));
  add(scheduler, 5);
  add(scheduler, 6, 1);
  const StepPlan step = prefill(scheduler);
  const StepOutcome outcome = process(scheduler, step);
  CHECK((list(outcome.completed_ids) == Ids{0}) && outcome.finish_reasons[1] != 0);
  CHECK(scheduler.state().sequences.find(0)->num_drafts == 0 && scheduler.state().running.size() == 2);
  scheduler.release_one(0);
  CHECK(scheduler.state().sequences.find(0) == nullptr && scheduler.blocks().num_free() == 30);
  const StepPlan empty = prefill(scheduler);
  CHECK((list(empty.dropped_ids) == Ids{1}) && empty.sequence_ids.empty());
  CHECK(process(scheduler, empty).closed_ids.empty());
  CHECK(!scheduler.has_unfinished() && scheduler.blocks().num_free() == 32);
}

void several_chunks_keep_their_order() {
  Scheduler scheduler(options_of(EngineType::prompt));
  const std::vector<std::int32_t> prompt(20, 5), checkpoints{8};
  for (int i = 0; i < 3; ++i)
    scheduler.add({.token_ids = prompt, .max_tokens = 9, .checkpoints = checkpoints});
  const StepPlan first = prefill(scheduler);
  CHECK((list(first.query_lengths) == std::vector<std::int32_t>{8, 8, 8}));
  process(scheduler, first);
  CHECK((list(prefill(scheduler).sequence_ids) == Ids{0, 1, 2}));
}

void who_was_aborted_before_the_hand_over_is_dropped() {
  Scheduler scheduler(options_of(EngineType::prompt));
  add(scheduler, 5);
  process(scheduler, prefill(scheduler));
  CHECK(scheduler.abort(Ids{0}) == 1 && !scheduler.has_running());
  scheduler.release_one(0);  // too late for a hand-over, but its memory goes
  CHECK(scheduler.blocks().num_free() == 32);
  const StepPlan step = prefill(scheduler);
  CHECK((list(step.dropped_ids) == Ids{0}));
  CHECK((list(process(scheduler, step).closed_ids) == Ids{0}) && scheduler.state().sequences.size() == 0);
}

void a_prefill_only_engine_runs_no_decode_step() {
  Scheduler scheduler(options_of(EngineType::prompt));
  scheduler.begin_step(false, false);
  check_throws<std::runtime_error>([&] { scheduler.finish_step(StepKind::decode); }, "no decode steps");
}

void a_decode_only_engine_takes_what_others_prefilled() {
  Scheduler scheduler(options_of(EngineType::completion));
  check_throws<std::runtime_error>([&] { add(scheduler, 3); }, "add_loaded");
  const std::vector<std::int32_t> tokens{5, 6, 7, 8};
  const NewRequest request{.token_ids = tokens, .max_tokens = 3, .prompt_length = 3};
  CHECK(scheduler.add_loaded(request, 3) == 0);
  check_throws<RequestError>([&] { scheduler.add_loaded(request, 2); }, "decode-only");
  scheduler.set_schedulable(0);
  const Ballot ballot = scheduler.begin_step(false, false);
  CHECK(ballot.round == VoteRound::none && !ballot.wants);
  check_throws<std::runtime_error>([&] { scheduler.finish_step(StepKind::prefill); }, "no prefill steps");
  const StepPlan step = scheduler.finish_step(StepKind::decode);
  CHECK(step.sequence_ids[0] == 0 && process(scheduler, step, 1).finish_reasons[0] != 0);
}

}  // namespace

int main() {
  completed_prompts_are_handed_over();
  several_chunks_keep_their_order();
  who_was_aborted_before_the_hand_over_is_dropped();
  a_prefill_only_engine_runs_no_decode_step();
  a_decode_only_engine_takes_what_others_prefilled();
}
