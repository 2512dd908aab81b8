#include "thalweg/scheduler/scheduler.hpp"

#include <limits>
#include <random>
#include <stdexcept>

#include "check.hpp"
#include "driver.hpp"

using namespace thalweg::scheduler;

namespace {

void calls_out_of_order_are_refused() {
  Scheduler scheduler(small_options());
  check_throws<std::runtime_error>([&] { scheduler.try_prefill(); }, "no step is open");
  check_throws<std::runtime_error>([&] { scheduler.finish_step(StepKind::decode); }, "no step is open");
  scheduler.begin_step(false, false);
  check_throws<std::runtime_error>([&] { scheduler.begin_step(false, false); }, "open already");
  check_throws<std::runtime_error>([&] { scheduler.try_prefill(); }, "did not want");
  scheduler.finish_step(StepKind::decode);
  check_throws<std::runtime_error>([&] { scheduler.begin_step(false, false); }, "step 0 has to be processed first");
  check_throws<std::invalid_argument>([&] { scheduler.release(1); }, "1 steps were planned");
}

void bad_requests_are_refused() {
  Scheduler scheduler(small_options());
  check_throws<RequestError>([&] { scheduler.add({.token_ids = {}, .max_tokens = 1}); }, "token_ids is empty");
  const std::vector<std::int32_t> negative{3, -2};
  check_throws<RequestError>([&] { scheduler.add({.token_ids = negative, .max_tokens = 1}); }, "contains -2");
  check_throws<RequestError>([&] { add(scheduler, 3, 0); }, "max_tokens is 0");
  const std::vector<std::int32_t> prompt{3, 4}, checkpoints{2, 2};
  check_throws<RequestError>(
      [&] { scheduler.add({.token_ids = prompt, .max_tokens = 1, .checkpoints = checkpoints}); },
      "checkpoints contain 2");
  CHECK(!scheduler.has_unfinished());
}

void the_largest_limits_do_not_overflow() {
  Options options = small_options();
  options.max_model_len = std::numeric_limits<std::int32_t>::max();
  Scheduler scheduler(options);
  add(scheduler, 4, std::numeric_limits<std::int32_t>::max());
  const StepPlan step = plan(scheduler);
  const StepOutcome outcome = process(scheduler, step);
  CHECK(outcome.token_ids.size() == 1 && outcome.finish_reasons[0] == 0);
}

void an_abort_reaches_every_phase() {
  Scheduler scheduler(small_options());
  const std::vector<std::int64_t> everybody{0, 1, 2, 99};
  add(scheduler, 4);
  run_step(scheduler);
  add(scheduler, 4);
  scheduler.begin_step(false, false);
  CHECK(scheduler.try_prefill());
  add(scheduler, 4);
  CHECK(scheduler.abort(everybody) == 3 && scheduler.abort(everybody) == 0);
  const StepPlan prefill = scheduler.finish_step(StepKind::prefill);
  CHECK(prefill.sequence_ids.size() == 1);
  CHECK(process(scheduler, prefill).token_ids.empty());
  const StepPlan last = plan(scheduler);
  CHECK((list(last.finished_ids) == std::vector<std::int64_t>{0, 1}));
  CHECK((list(last.dropped_ids) == std::vector<std::int64_t>{2}));
  scheduler.release(last.step);
  const StepOutcome outcome = process(scheduler, last);
  CHECK((list(outcome.closed_ids) == std::vector<std::int64_t>{0, 1, 2}));
  CHECK(scheduler.state().sequences.size() == 0 && scheduler.blocks().num_free() == 32);
}

void a_held_sequence_keeps_its_memory() {
  Scheduler scheduler(small_options());
  add(scheduler, 4, 1);
  run_step(scheduler);
  scheduler.hold(0);
  run_step(scheduler);
  CHECK(scheduler.blocks().num_free() == 31);
  scheduler.release_one(0);
  scheduler.release_one(0);
  CHECK(scheduler.blocks().num_free() == 32);
  check_throws<std::invalid_argument>([&] { scheduler.hold(0); }, "cannot hold sequence 0");
}

void random_workloads_drain_without_a_leak() {
  std::mt19937 random(3);
  for (int run = 0; run < 60; ++run) {
    Options options = small_options();
    options.num_blocks = 8 + static_cast<std::int32_t>(random() % 20);
    options.max_num_batched_tokens = 24 + static_cast<std::int32_t>(random() % 20);
    options.stop_preempted_request = run % 3 == 0;
    Scheduler scheduler(options);
    std::int64_t added = 0, closed = 0;
    for (int step = 0; step < 3000 && (step < 40 || scheduler.has_unfinished()); ++step) {
      if (step < 40 && random() % 3 == 0) {
        add(scheduler, 1 + static_cast<std::int32_t>(random() % 40), 1 + static_cast<std::int32_t>(random() % 60));
        ++added;
      }
      const std::vector<std::int64_t> victim{static_cast<std::int64_t>(random() % 200)};
      scheduler.abort(victim);
      const StepPlan plan = thalweg::scheduler::plan(scheduler);
      const StepOutcome outcome = process(scheduler, plan, random() % 3, random() % 30 == 0 ? 1 : 60);
      scheduler.release(plan.step);
      closed += static_cast<std::int64_t>(outcome.closed_ids.size());
      for (const std::int8_t reason : outcome.finish_reasons) closed += reason != 0;
      const CoreState& state = scheduler.state();
      const auto rows = static_cast<std::int32_t>(plan.shape.rows);
      CHECK(plan.kind == StepKind::prefill || state.draft_slots.num_in_use() <= rows);
    }
    CHECK(!scheduler.has_unfinished() && closed == added);
    CHECK(scheduler.blocks().num_free() == options.num_blocks - 1 && scheduler.state_slots().num_free() == 10);
    CHECK(scheduler.state().sequences.size() == 0 && scheduler.state().draft_slots.num_in_use() == 0);
  }
}

}  // namespace

int main() {
  calls_out_of_order_are_refused();
  bad_requests_are_refused();
  the_largest_limits_do_not_overflow();
  an_abort_reaches_every_phase();
  a_held_sequence_keeps_its_memory();
  random_workloads_drain_without_a_leak();
}
