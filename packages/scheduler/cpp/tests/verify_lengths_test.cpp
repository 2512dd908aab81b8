// Decode steps whose verify lengths follow a step-time curve.
#include <stdexcept>

#include "check.hpp"
#include "driver.hpp"
#include "thalweg/scheduler/errors.hpp"

using namespace thalweg::scheduler;
using Numbers = std::vector<std::int32_t>;

namespace {

// Process with these confidences for both drafts of row 0, and for those of row 1.
void process_with(Scheduler& scheduler, const StepPlan& plan, const std::vector<float>& confidences) {
  const std::size_t rows = plan.shape.rows;
  const Numbers sampled(rows, 60), accepted(2 * rows, -1), drafts(2 * rows, 70);
  scheduler.process({.step = plan.step,
                     .sampled_token_ids = sampled,
                     .accepted_token_ids = accepted,
                     .draft_token_ids = drafts,
                     .confidences = confidences});
}

void start(Scheduler& scheduler) {
  add(scheduler, 9);
  add(scheduler, 5);
  run_step(scheduler);
}

void without_a_curve_everything_is_verified() {
  Scheduler scheduler(small_options());
  start(scheduler);
  const StepPlan first = plan(scheduler);
  CHECK((list(first.query_lengths) == Numbers{3, 3}));
  process_with(scheduler, first, {0.0f, 0.0f, 0.0f, 0.0f});
  CHECK((list(plan(scheduler).query_lengths) == Numbers{3, 3}));
}

void the_budget_comes_from_the_round_before_the_last_and_the_split_from_the_last() {
  Scheduler scheduler(small_options());
  start(scheduler);
  scheduler.set_step_time_curve({{2, 1.0}, {4, 1.3}, {8, 100.0}});
  const StepPlan padding = plan(scheduler);  // nothing is known of padding: not worth a token
  CHECK((list(padding.query_lengths) == Numbers{1, 1}) && padding.num_batched_tokens == 2);
  process_with(scheduler, padding, {0.9f, 0.9f, 0.1f, 0.1f});
  const StepPlan unknown = plan(scheduler);  // unread drafts without a round before: certain, so the larger graph pays
  CHECK((list(unknown.query_lengths) == Numbers{3, 1}));
  process_with(scheduler, unknown, {0.1f, 0.1f, 0.9f, 0.9f});
  const StepPlan known = plan(scheduler);  // 0.9 + 0.81 for 0.3 ms more, and now the second row is the likely one
  CHECK((list(known.query_lengths) == Numbers{1, 3}) && known.num_batched_tokens == 4);
  process_with(scheduler, known, {0.1f, 0.1f, 0.1f, 0.1f});
}

void a_curve_must_hold_everybody() {
  Scheduler scheduler(small_options());
  check_throws<ConfigError>([&] { scheduler.set_step_time_curve({{7, 1.0}}); }, "at least max_num_seqs, 8");
  check_throws<ConfigError>([&] { scheduler.set_step_time_curve({}); }, "points is empty");
  check_throws<ConfigError>([&] { scheduler.set_step_time_curve({{8, 1.0}, {4, 1.0}}); }, "ascend");
  CHECK(!scheduler.state().verify_budget.has_curve());
}

void confidences_that_are_none_change_nothing() {
  Scheduler scheduler(small_options());
  start(scheduler);
  const StepPlan step = plan(scheduler);
  for (const float bad : {-0.1f, 1.5f, std::numeric_limits<float>::quiet_NaN()})
    check_throws<std::invalid_argument>([&] { process_with(scheduler, step, {0.5f, bad, 0.5f, 0.5f}); }, "from 0 to 1");
  process_with(scheduler, step, {-0.0f, 1.0f, 0.5f, 0.5f});
}

}  // namespace

int main() {
  without_a_curve_everything_is_verified();
  the_budget_comes_from_the_round_before_the_last_and_the_split_from_the_last();
  a_curve_must_hold_everybody();
  confidences_that_are_none_change_nothing();
}
