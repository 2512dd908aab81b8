#include "thalweg/scheduler/forks.hpp"

#include <stdexcept>

#include "check.hpp"
#include "driver.hpp"
#include "thalweg/scheduler/errors.hpp"

using namespace thalweg::scheduler;
using Numbers = std::vector<std::int32_t>;

namespace {

// One sequence with a prompt of five tokens, in two blocks of four, decoding.
void start(Scheduler& scheduler) {
  add(scheduler, 5);
  run_step(scheduler);
}

void a_decoding_child_shares_full_blocks_and_copies_the_rest() {
  Scheduler scheduler(small_options());
  start(scheduler);
  CHECK(scheduler.fork(0, 42) == 1);
  const StepPlan step = plan(scheduler);
  CHECK((list(step.state_copies) == Numbers{1, 2}) && (list(step.block_copies) == Numbers{2, 3}));
  CHECK((list(step.sequence_ids) == std::vector<std::int64_t>{1, 0}));
  CHECK((list(step.block_ids) == Numbers{1, 3, 1, 2}));
  CHECK(step.tail_token_ids[2] == 42 && step.tail_token_ids[5] == 60);
  CHECK(process(scheduler, step).token_ids.size() == 2);
}

void sources_are_let_go_with_the_release_of_the_next_step() {
  Scheduler scheduler(small_options());
  start(scheduler);
  scheduler.fork(0);
  const StepPlan step = plan(scheduler);
  scheduler.abort(std::vector<std::int64_t>{0, 1});
  process(scheduler, step);
  scheduler.release(step.step);
  const StepPlan last = plan(scheduler);
  process(scheduler, last);
  CHECK(scheduler.has_unfinished());  // the sources are pinned
  scheduler.release(last.step);
  CHECK(!scheduler.has_unfinished() && scheduler.state().sequences.size() == 0);
  CHECK(scheduler.blocks().num_free() == 32 && scheduler.state_slots().num_free() == 10);
}

void an_aborted_child_takes_its_copies_along() {
  Scheduler scheduler(small_options());
  start(scheduler);
  scheduler.fork(0);
  CHECK(scheduler.abort(std::vector<std::int64_t>{1}) == 1);
  const StepPlan step = plan(scheduler);
  CHECK(step.state_copies.empty() && step.block_copies.empty() && step.dropped_ids[0] == 1);
  CHECK(scheduler.blocks().num_free() == 30 && scheduler.state_slots().num_free() == 9);
}

void a_grandchild_copies_from_where_its_parent_will() {
  Scheduler scheduler(small_options());
  start(scheduler);
  scheduler.fork(0);
  CHECK(scheduler.fork(1) == 2);
  const StepPlan step = plan(scheduler);
  CHECK((list(step.state_copies) == Numbers{1, 2, 1, 3}) && (list(step.block_copies) == Numbers{2, 3, 2, 4}));
}

void a_waiting_parent_has_a_child_that_goes_before_it() {
  Options options = small_options();
  options.max_num_batched_tokens = 24;
  Scheduler scheduler(options);
  add(scheduler, 40);
  add(scheduler, 3);
  run_step(scheduler);
  CHECK(scheduler.fork(0) == 2 && scheduler.fork(1) == 3);
  const CoreState& state = scheduler.state();
  CHECK(state.waiting.holders().front()->id == 2 && state.waiting.others().front()->id == 3);
  CHECK(state.sequences.find(2)->computed == 24 && state.sequences.find(2)->blocks.size() == 10);
  CHECK(state.sequences.find(2)->blocks[5] == state.sequences.find(0)->blocks[5]);
  CHECK(state.sequences.find(2)->blocks[6] != state.sequences.find(0)->blocks[6]);
  CHECK(state.pending_copies.blocks.empty() && state.pending_copies.states.size() == 1);
}

void a_fork_that_does_not_fit_takes_nothing() {
  Options options = small_options();
  options.num_state_slots = 2;
  Scheduler scheduler(options);
  start(scheduler);
  CHECK(!scheduler.fork(0).has_value());
  CHECK(scheduler.blocks().num_free() == 30 && scheduler.state().sequences.size() == 1);
}

void forks_out_of_place_are_refused() {
  Options options = small_options();
  options.plans_ahead = true;
  Scheduler scheduler(options);
  check_throws<RequestError>([&] { scheduler.fork(7); }, "cannot fork sequence 7");
  add(scheduler, 5);
  check_throws<RequestError>([&] { scheduler.fork(0, 3); }, "only the last output token");
  const StepPlan prefill = plan(scheduler);
  check_throws<std::runtime_error>([&] { scheduler.fork(0); }, "part of a prefill");
  process(scheduler, prefill);
  check_throws<RequestError>([&] { scheduler.fork(0, -3); }, "last_token_id is -3");
  plan(scheduler);
  CHECK(scheduler.fork(0).has_value());
  plan(scheduler);
  check_throws<std::runtime_error>([&] { scheduler.fork(0); }, "two are unprocessed");
}

}  // namespace

int main() {
  a_decoding_child_shares_full_blocks_and_copies_the_rest();
  sources_are_let_go_with_the_release_of_the_next_step();
  an_aborted_child_takes_its_copies_along();
  a_grandchild_copies_from_where_its_parent_will();
  a_waiting_parent_has_a_child_that_goes_before_it();
  a_fork_that_does_not_fit_takes_nothing();
  forks_out_of_place_are_refused();
}
