#include "thalweg/scheduler/post_process.hpp"

#include <cmath>
#include <stdexcept>

#include "check.hpp"
#include "driver.hpp"

using namespace thalweg::scheduler;

namespace {

constexpr auto stopped = static_cast<std::int8_t>(Status::finished_stopped);
constexpr auto capped = static_cast<std::int8_t>(Status::finished_length_capped);
constexpr auto failed = static_cast<std::int8_t>(Status::finished_structured_failed);

void accepted_drafts_come_before_the_sampled_token() {
  Scheduler scheduler(small_options());
  add(scheduler, 5);
  const StepPlan prompt = plan(scheduler);
  const StepOutcome first = process(scheduler, prompt);
  CHECK(first.token_ids.size() == 1 && first.num_verified[0] == 1 && first.num_accepted[0] == 1);
  const StepPlan step = plan(scheduler);
  const StepOutcome outcome = process(scheduler, step, 1);
  CHECK((list(outcome.token_ids) == std::vector<std::int32_t>{50, 60}));
  CHECK(outcome.num_output_tokens[0] == 3 && outcome.num_verified[0] == 3 && outcome.num_accepted[0] == 2);
  CHECK(std::isnan(outcome.verified_confidences[0]));  // padding has none
  const StepPlan next = plan(scheduler);
  CHECK(process(scheduler, next).verified_confidences[1] == 0.5f);
}

void the_first_stop_wins_and_cuts_the_rest() {
  Scheduler scheduler(small_options());
  add(scheduler, 5, 3);
  run_step(scheduler);
  const StepPlan step = plan(scheduler);
  const StepOutcome outcome = process(scheduler, step, 2, 1);  // the third token would be the end token
  CHECK(outcome.token_ids.size() == 2 && outcome.finish_reasons[0] == capped && outcome.num_accepted[0] == 3);
  CHECK(!scheduler.has_running() && scheduler.has_unfinished());
  const StepPlan last = plan(scheduler);
  CHECK((list(last.finished_ids) == std::vector<std::int64_t>{0}));
  CHECK(process(scheduler, last).closed_ids.empty());  // its record came with the row
  scheduler.release(last.step);
  CHECK(scheduler.state().sequences.size() == 0 && scheduler.blocks().num_free() == 32);
}

void the_end_token_stops_even_at_the_length_cap() {
  Scheduler scheduler(small_options());
  add(scheduler, 5, 1);
  const StepPlan step = plan(scheduler);
  CHECK(process(scheduler, step, 0, 1).finish_reasons[0] == stopped);
}

void a_failed_grammar_ends_without_a_token() {
  for (const Policy policy : {Policy::standard, Policy::reference}) {
    Options options = small_options();
    options.policy = policy;
    Scheduler scheduler(options);
    add(scheduler, 5, 10, true);
    const StepPlan step = plan(scheduler);
    const StepOutcome outcome = process(scheduler, step, 0, 60, -1);
    CHECK(outcome.finish_reasons[0] == failed);
    CHECK(outcome.token_ids.size() == (policy == Policy::reference ? 1u : 0u));
  }
}

void a_result_of_the_wrong_shape_changes_nothing() {
  Scheduler scheduler(small_options());
  add(scheduler, 5);
  const StepPlan step = plan(scheduler);
  check_throws<std::invalid_argument>([&] { scheduler.process({.step = 0}); }, "sampled_token_ids has 0 elements");
  check_throws<std::invalid_argument>([&] { scheduler.process({.step = 1}); }, "step 0 is due");
  process(scheduler, step);
  check_throws<std::invalid_argument>([&] { scheduler.process({.step = 1}); }, "no step waits for a result");
}

}  // namespace

int main() {
  accepted_drafts_come_before_the_sampled_token();
  the_first_stop_wins_and_cuts_the_rest();
  the_end_token_stops_even_at_the_length_cap();
  a_failed_grammar_ends_without_a_token();
  a_result_of_the_wrong_shape_changes_nothing();
}
