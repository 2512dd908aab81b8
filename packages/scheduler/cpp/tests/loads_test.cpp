#include "thalweg/scheduler/loads.hpp"

#include <numeric>

#include "check.hpp"
#include "driver.hpp"
#include "thalweg/scheduler/errors.hpp"

using namespace thalweg::scheduler;

namespace {

std::optional<std::int64_t> load(Scheduler& scheduler, std::int32_t num_tokens, std::int64_t num_computed,
                                 std::optional<std::int64_t> prompt_length = std::nullopt) {
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(num_tokens));
  std::iota(tokens.begin(), tokens.end(), 10);
  return scheduler.add_loaded({.token_ids = tokens, .max_tokens = 20, .prompt_length = prompt_length}, num_computed);
}

void a_loaded_prompt_goes_on_once_its_data_is_there() {
  Scheduler scheduler(small_options());
  CHECK(load(scheduler, 10, 6) == 0);
  CHECK(scheduler.blocks().num_free() == 29 && scheduler.has_half_prefilled());
  add(scheduler, 3);
  const StepPlan others = plan(scheduler);  // it holds nobody up
  CHECK((list(others.sequence_ids) == std::vector<std::int64_t>{1}));
  process(scheduler, others);
  scheduler.set_schedulable(0);
  const StepPlan step = plan(scheduler);
  CHECK(step.query_lengths[0] == 4 && step.context_lengths[0] == 10 && step.token_ids[0] == 16);
}

void with_output_it_is_ready_to_decode() {
  Scheduler scheduler(small_options());
  CHECK(load(scheduler, 10, 9, 7) == 0);
  CHECK(scheduler.state().prompted.size() == 1 && !scheduler.has_half_prefilled());
  const StepPlan empty = plan(scheduler);
  CHECK(empty.sequence_ids.empty() && empty.stats.num_prompted == 1);
  process(scheduler, empty);
  scheduler.set_schedulable(0);
  const StepPlan step = plan(scheduler);
  CHECK(step.kind == StepKind::decode && step.context_lengths[0] == 12 && step.prompt_lengths[0] == 7);
  CHECK(step.draft_token_ids[0] == 999 && step.draft_write_slots[0] == 1);
}

void a_load_that_does_not_fit_takes_nothing() {
  Options options = small_options();
  options.num_state_slots = 2;
  Scheduler scheduler(options);
  load(scheduler, 10, 6);
  CHECK(!load(scheduler, 4, 2).has_value() && scheduler.blocks().num_free() == 29);
}

void what_could_never_run_is_refused() {
  Scheduler scheduler(small_options());
  check_throws<RequestError>([&] { load(scheduler, 4, 4); }, "num_computed_tokens is 4");
  check_throws<RequestError>([&] { load(scheduler, 65, 3); }, "65 tokens are too long");
  check_throws<RequestError>([&] { load(scheduler, 4, 1, 5); }, "prompt_length is 5");
  check_throws<RequestError>([&] { load(scheduler, 30, 29, 5); }, "25 output tokens already");
  Options options = small_options();
  options.num_blocks = 4;
  Scheduler small(options);
  check_throws<RequestError>([&] { load(small, 13, 3); }, "more than all 3 blocks");
  CHECK(!scheduler.has_unfinished() && scheduler.state().sequences.size() == 0);
}

}  // namespace

int main() {
  a_loaded_prompt_goes_on_once_its_data_is_there();
  with_output_it_is_ready_to_decode();
  a_load_that_does_not_fit_takes_nothing();
  what_could_never_run_is_refused();
}
