// Planning a decode step while another one is unprocessed, and bringing it up to date.
#include <optional>
#include <random>
#include <stdexcept>
#include <utility>

#include "check.hpp"
#include "driver.hpp"
#include "thalweg/scheduler/errors.hpp"

using namespace thalweg::scheduler;
using Numbers = std::vector<std::int32_t>;

namespace {

Options async_options() {
  Options options = small_options();
  options.plans_ahead = true;
  return options;
}

StepPlan plan_decode(Scheduler& scheduler) {
  scheduler.begin_step(scheduler.has_running(), scheduler.has_half_prefilled());
  return scheduler.finish_step(StepKind::decode);
}

// Prompts of these lengths, prefilled, and the first decode step in flight.
StepPlan first_decode(Scheduler& scheduler, const Numbers& lengths) {
  for (const std::int32_t length : lengths) add(scheduler, length);
  run_step(scheduler);
  return plan_decode(scheduler);
}

void two_decode_steps_may_be_alive() {
  Scheduler scheduler(async_options());
  const StepPlan first = first_decode(scheduler, {3, 9});
  CHECK((list(first.previous_rows) == Numbers{-1, -1}));
  const StepPlan second = plan_decode(scheduler);
  check_throws<std::runtime_error>([&] { scheduler.begin_step(true, false); }, "step 1 has to be processed first");
  CHECK((list(second.previous_rows) == Numbers{0, 1}));
  // As if all three tokens of the first step stayed.
  CHECK((list(second.context_lengths) == Numbers{15, 9}) && (list(second.committed_lengths) == Numbers{10, 4}));
  process(scheduler, first, 1);
  check_throws<std::invalid_argument>([&] { process(scheduler, first); }, "step 2 is due");
  process(scheduler, second);
}

void a_prefill_is_processed_before_anything_else_is_planned() {
  Scheduler scheduler(async_options());
  const StepPlan decode = first_decode(scheduler, {3});
  add(scheduler, 4);
  scheduler.begin_step(false, false);  // nobody else runs: a vote
  CHECK(scheduler.try_prefill());
  const StepPlan prefill = scheduler.finish_step(StepKind::prefill);
  CHECK((list(prefill.previous_rows) == Numbers{-1}));
  process(scheduler, decode);
  check_throws<std::runtime_error>([&] { scheduler.begin_step(true, false); }, "step 2 has to be processed first");
  process(scheduler, prefill);
  CHECK(plan_decode(scheduler).sequence_ids.size() == 2);
}

void synchronous_schedulers_plan_nothing_ahead() {
  Scheduler scheduler(small_options());
  first_decode(scheduler, {3});
  check_throws<std::runtime_error>([&] { scheduler.begin_step(true, false); }, "step 1 has to be processed first");
  check_throws<std::runtime_error>([&] { scheduler.correct(1); }, "without asynchronous scheduling");
}

void a_correction_shows_what_the_step_before_left() {
  Scheduler scheduler(async_options());
  const StepPlan first = first_decode(scheduler, {3, 9});
  const StepPlan second = plan_decode(scheduler);
  check_throws<std::runtime_error>([&] { scheduler.correct(second.step); }, "the only one unprocessed");
  process(scheduler, first, 1);
  const StepCorrection correction = scheduler.correct(second.step);
  CHECK((list(correction.query_lengths) == Numbers{3, 3}));
  CHECK((list(correction.committed_lengths) == Numbers{12, 6}));
  CHECK((list(correction.context_lengths) == Numbers{14, 8}));
  CHECK((list(correction.anchor_token_ids) == Numbers{60, 60}));
  CHECK((list(correction.draft_token_ids) == Numbers{70, 70, 70, 70}));
  CHECK((list(correction.draft_read_slots) == Numbers{2, 1}) && (list(second.draft_read_slots) == Numbers{0, 0}));
  CHECK(correction.is_live[0] && correction.is_live[1]);
  check_throws<std::runtime_error>([&] { scheduler.correct(second.step); }, "corrected already");
  CHECK(process(scheduler, second, 2).token_ids.size() == 6);
}

void corrected_lengths_decide_what_is_verified() {
  Scheduler scheduler(async_options());
  const StepPlan first = first_decode(scheduler, {3, 9});
  const StepPlan second = plan_decode(scheduler);
  process(scheduler, first);
  const auto refuse = [&](const Numbers& lengths, const char* text) {
    check_throws<std::invalid_argument>([&] { scheduler.correct(second.step, lengths); }, text);
  };
  refuse({6}, "has 1 elements; this step needs 2");
  refuse({0, 6}, "contains 0; each must be from 1 to 3");
  refuse({3, 2}, "sum to 5; step 2 has 6");
  CHECK(scheduler.correct(second.step, Numbers{3, 3}).query_lengths[0] == 3);
  const StepOutcome outcome = process(scheduler, second, 2);
  CHECK(outcome.num_verified[0] == 3 && outcome.num_accepted[0] == 3);
}

void a_row_of_a_sequence_that_ended_is_dead_but_keeps_its_write_slot() {
  Scheduler scheduler(async_options());
  add(scheduler, 3, 2);
  run_step(scheduler);
  const StepPlan first = plan_decode(scheduler);
  const StepPlan second = plan_decode(scheduler);
  CHECK(process(scheduler, first).finish_reasons[0] == static_cast<std::int8_t>(Status::finished_length_capped));
  const StepCorrection correction = scheduler.correct(second.step);
  CHECK(!correction.is_live[0] && correction.draft_read_slots[0] == 0 && correction.draft_write_slots[0] == 1);
  const StepPlan third = plan_decode(scheduler);
  CHECK(third.finished_ids[0] == 0 && third.sequence_ids.empty());
  const StepOutcome outcome = process(scheduler, second, 2);
  CHECK(outcome.token_ids.empty() && outcome.finish_reasons[0] == 0 && outcome.num_output_tokens[0] == 2);
  scheduler.release(third.step);
  process(scheduler, third);
  CHECK(!scheduler.has_unfinished() && scheduler.state().sequences.size() == 0);
}

void a_step_never_happened_for_who_was_preempted_in_flight() {
  Options options = async_options();
  options.num_blocks = 5;
  Scheduler scheduler(options);
  const StepPlan first = first_decode(scheduler, {4, 4});
  const StepPlan second = plan_decode(scheduler);  // both want a third block
  CHECK((list(second.restarted_ids).size() == 1 && second.sequence_ids.size() == 1));
  const Sequence& victim = *scheduler.state().sequences.find(second.restarted_ids[0]);
  const std::int32_t length = victim.length();
  const StepOutcome outcome = process(scheduler, first, 2);
  CHECK(victim.length() == length && victim.status == Status::waiting && victim.computed == 0);
  CHECK(victim.schedule_count == 0 && victim.process_count == 0 && victim.num_in_flight() == 0);
  CHECK(outcome.token_ids.size() == 3);
  process(scheduler, second);
}

void blocks_reserved_for_tokens_that_were_rejected_go_back() {
  Scheduler scheduler(async_options());
  const StepPlan first = first_decode(scheduler, {5});
  const StepPlan second = plan_decode(scheduler);  // 6 tokens, 3 in flight, 2 drafts: three blocks
  CHECK(second.block_ids.size() == 3);
  process(scheduler, first);
  process(scheduler, second);
  const StepPlan third = plan_decode(scheduler);  // 8 tokens and 2 drafts, nothing in flight
  CHECK(third.block_ids.size() == 3);
  process(scheduler, third);
  const StepPlan fourth = plan_decode(scheduler);
  const StepPlan fifth = plan_decode(scheduler);  // 9, 3 and 2: a fourth one
  CHECK(fourth.block_ids.size() == 3 && fifth.block_ids.size() == 4);
  process(scheduler, fourth);
  process(scheduler, fifth);
  CHECK(plan_decode(scheduler).block_ids.size() == 4);
}

// Everything that may happen, at random, with a step in flight.
class RandomRun {
 public:
  explicit RandomRun(unsigned seed) : random_(seed), scheduler_(options(seed)) {
    if (seed % 3 == 0) scheduler_.set_step_time_curve({{8, 1.0}, {16, 1.5}, {24, 4.0}});
  }

  void run() {
    for (int step = 0; step < 4000 && (step < 60 || scheduler_.has_unfinished()); ++step) {
      if (step < 60) arrive();
      StepPlan next = plan(scheduler_);
      if (in_flight_) finish(*in_flight_);
      in_flight_.reset();
      if (next.kind == StepKind::prefill || next.sequence_ids.empty()) finish(next);
      else in_flight_ = correct(std::move(next));
    }
    CHECK(!scheduler_.has_unfinished() && scheduler_.state().sequences.size() == 0);
    CHECK(scheduler_.blocks().num_free() == scheduler_.blocks().capacity() - 1);
    CHECK(scheduler_.state_slots().num_free() == 10 && scheduler_.state().draft_slots.num_in_use() == 0);
    CHECK(num_ended_ == num_added_);
  }

 private:
  static Options options(unsigned seed) {
    Options options = async_options();
    options.num_blocks = 10 + static_cast<std::int32_t>(seed % 20);
    options.stop_preempted_request = seed % 4 == 0;
    return options;
  }

  std::int32_t below(std::int32_t end) { return static_cast<std::int32_t>(random_() % static_cast<unsigned>(end)); }

  void arrive() {
    if (below(3) == 0) {
      add(scheduler_, 1 + below(30), 1 + below(40));
      ++num_added_;
    }
    if (below(8) == 0) {
      const std::vector<std::int32_t> tokens(static_cast<std::size_t>(4 + below(9)), 7);
      const auto id = scheduler_.add_loaded({.token_ids = tokens, .max_tokens = 30, .prompt_length = 3}, 3);
      if (id.has_value()) scheduler_.set_schedulable(*id);
      num_added_ += id.has_value();
    }
    if (below(3) == 0) try_fork(below(40));
    if (below(6) == 0) scheduler_.abort(std::vector<std::int64_t>{below(60), below(60)});
  }

  void try_fork(std::int64_t id) {
    const Sequence* parent = scheduler_.state().sequences.find(id);
    if (parent == nullptr || parent->is_finished()) return;
    num_added_ += scheduler_.fork(id).has_value();
  }

  StepPlan correct(StepPlan plan) {
    const StepCorrection correction = scheduler_.correct(plan.step);
    for (std::size_t i = 0; i < plan.shape.rows; ++i)
      CHECK(correction.context_lengths[i] == correction.committed_lengths[i] - 1 + correction.query_lengths[i]);
    return plan;
  }

  void finish(const StepPlan& plan) {
    const StepOutcome outcome = process(scheduler_, plan, random_() % 3, below(30) == 0 ? 1 : 60);
    scheduler_.release(plan.step);
    num_ended_ += static_cast<int>(outcome.closed_ids.size());
    for (const std::int8_t reason : outcome.finish_reasons) num_ended_ += reason != 0;
  }

  std::mt19937 random_;
  Scheduler scheduler_;
  std::optional<StepPlan> in_flight_;
  int num_added_ = 0;
  int num_ended_ = 0;
};

void random_workloads_drain_without_a_leak() {
  for (unsigned seed = 0; seed < 80; ++seed) RandomRun(seed).run();
}

}  // namespace

int main() {
  random_workloads_drain_without_a_leak();
  two_decode_steps_may_be_alive();
  a_prefill_is_processed_before_anything_else_is_planned();
  synchronous_schedulers_plan_nothing_ahead();
  a_correction_shows_what_the_step_before_left();
  corrected_lengths_decide_what_is_verified();
  a_row_of_a_sequence_that_ended_is_dead_but_keeps_its_write_slot();
  a_step_never_happened_for_who_was_preempted_in_flight();
  blocks_reserved_for_tokens_that_were_rejected_go_back();
}
