#include "thalweg/scheduler/scheduler.hpp"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>

#include "thalweg/scheduler/errors.hpp"
#include "thalweg/scheduler/plan_builder.hpp"
#include "thalweg/scheduler/post_process.hpp"
#include "thalweg/scheduler/prefill.hpp"

namespace thalweg::scheduler {
namespace {

// A literal, because a message that is built for nothing costs as much as planning several rows.
void require(bool is_legal, const char* message) {
  if (!is_legal) throw std::runtime_error(message);
}

}  // namespace

Scheduler::Scheduler(const Options& options, std::optional<FlopsEstimator> flops)
    : state_(options, std::move(flops)), vote_(options) {}

Ballot Scheduler::begin_step(bool anyone_running, bool anyone_half_prefilled) {
  check_may_begin();
  const bool never_prefills = state_.options.engine_type == EngineType::completion;
  ballot_ = {vote_.round(anyone_running, anyone_half_prefilled), !never_prefills && wants_prefill(state_)};
  phase_ = Phase::open;
  return ballot_;
}

void Scheduler::check_may_begin() const {
  require(phase_ == Phase::idle, "begin_step: the step is open already; finish_step closes it");
  const std::int64_t num_unprocessed = steps_.num_unprocessed();
  if (num_unprocessed == 0) return;
  const Step& step = steps_.due();
  if (state_.options.plans_ahead && num_unprocessed == 1 && step.kind == StepKind::decode) return;
  throw std::runtime_error("begin_step: step " + std::to_string(step.number) + " has to be processed first");
}

bool Scheduler::try_prefill() {
  require(phase_ != Phase::idle, "try_prefill: no step is open; begin_step opens it");
  require(ballot_.round == VoteRound::prefill || (ballot_.round != VoteRound::none && ballot_.wants),
          "try_prefill: this step holds no vote, or this rank did not want a prefill");
  require(phase_ == Phase::open, "try_prefill: this step has a prefill already");
  Step& step = steps_.next();
  step.kind = StepKind::prefill;
  plan_prefill(state_, step);
  if (step.rows.empty() && step.dropped.empty()) return false;
  phase_ = Phase::prefill_ready;
  return true;
}

StepPlan Scheduler::finish_step(StepKind kind) {
  require(phase_ != Phase::idle, "finish_step: no step is open; begin_step opens it");
  check_kind(kind);
  Step& step = steps_.next();
  plan(step, kind);
  std::swap(step.copies, state_.pending_copies);
  StepPlan made = build_plan(state_, step);
  defer_releases(step);
  steps_.commit();
  phase_ = Phase::idle;
  return made;
}

void Scheduler::check_kind(StepKind kind) const {
  require(kind == StepKind::prefill || phase_ == Phase::open,
          "finish_step: a prefill is prepared, the step cannot become a decode");
  require(kind == StepKind::prefill || state_.options.engine_type != EngineType::prompt,
          "finish_step: a prefill-only engine runs no decode steps");
  require(kind == StepKind::decode || state_.options.engine_type != EngineType::completion,
          "finish_step: a decode-only engine runs no prefill steps");
}

void Scheduler::plan(Step& step, StepKind kind) {
  step.kind = kind;
  if (kind == StepKind::decode) {
    decode_planner_.plan(state_, step, steps_.in_flight());
    vote_.count_decode();
    return;
  }
  if (phase_ == Phase::open) plan_empty_prefill(state_, step);
  vote_.count_prefill();
}

void Scheduler::defer_releases(const Step& step) {
  if (!step.copies.empty()) copying_[step.number] = step.copies;
  if (step.finished.empty()) return;
  std::vector<std::int64_t>& ids = unreleased_[step.number];
  for (const Sequence* sequence : step.finished) ids.push_back(sequence->id);
}

StepCorrection Scheduler::correct(std::int64_t step,
                                  const std::optional<std::span<const std::int32_t>>& query_lengths) {
  check_may_correct(step);
  StepCorrection correction = correct_step(state_, steps_.due(), query_lengths);
  steps_.due().is_corrected = true;
  return correction;
}

void Scheduler::check_may_correct(std::int64_t step) const {
  require(state_.options.plans_ahead, "correct: without asynchronous scheduling plans are never out of date");
  require(steps_.num_unprocessed() == 1, "correct: the step to correct must be the only one unprocessed");
  const Step& due = steps_.due();
  if (due.number != step)
    throw std::runtime_error("correct: step " + std::to_string(due.number) + " is unprocessed, not step " +
                             std::to_string(step));
  require(due.kind == StepKind::decode, "correct: a prefill step is never out of date");
  require(!due.is_corrected, "correct: the step was corrected already");
}

const Step& Scheduler::due(std::int64_t step) const {
  const bool is_any_due = steps_.num_unprocessed() > 0;
  if (is_any_due && step == steps_.due().number) return steps_.due();
  throw std::invalid_argument(
      "the result is for step " + std::to_string(step) + "; " +
      (is_any_due ? "step " + std::to_string(steps_.due().number) + " is due" : "no step waits for a result"));
}

StepOutcome Scheduler::process(const StepResult& result) {
  check_result(state_, due(result.step), result);
  StepOutcome outcome = post_process(state_, steps_.due(), result);
  steps_.finish_due();
  return outcome;
}

void Scheduler::set_step_time_curve(std::vector<StepTime> points) {
  const auto largest = std::max_element(points.begin(), points.end(), [](const StepTime& left, const StepTime& right) {
    return left.graph_size < right.graph_size;
  });
  if (largest != points.end() && largest->graph_size < state_.options.max_num_seqs)
    throw ConfigError("the largest size of the step-time curve is " + std::to_string(largest->graph_size) +
                      "; it must be at least max_num_seqs, " + std::to_string(state_.options.max_num_seqs));
  state_.verify_budget.set_step_time_curve(std::move(points));
}

void Scheduler::record_step_time(std::int64_t num_rows, std::int64_t graph_size, double forward_ms, double sampler_ms) {
  state_.verify_budget.record_step_time(num_rows, graph_size, forward_ms, sampler_ms);
}

bool Scheduler::has_unfinished() const noexcept {
  return steps_.num_unprocessed() > 0 || !state_.waiting.empty() || !state_.prompted.empty() ||
         !state_.running.empty() || !state_.pending_copies.empty() || !copying_.empty();
}

}  // namespace thalweg::scheduler
