#include "thalweg/scheduler/scheduler.hpp"

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <string>

#include "thalweg/scheduler/plan_builder.hpp"
#include "thalweg/scheduler/post_process.hpp"
#include "thalweg/scheduler/prefill.hpp"

namespace thalweg::scheduler {
namespace {

// Output tokens for which room is reserved at once; longer outputs grow geometrically.
constexpr std::int64_t reserved_outputs = 1024;

// A literal, because a message that is built for nothing costs as much as planning several rows.
void require(bool is_legal, const char* message) {
  if (!is_legal) throw std::runtime_error(message);
}

void check(const NewRequest& request) {
  if (request.token_ids.empty()) throw RequestError("token_ids is empty; a prompt has at least one token");
  const auto smallest = std::min_element(request.token_ids.begin(), request.token_ids.end());
  if (*smallest < 0) throw RequestError("token_ids contains " + std::to_string(*smallest) + "; ids are 0 or more");
  if (request.max_tokens < 1 || request.max_tokens > std::numeric_limits<std::int32_t>::max())
    throw RequestError("max_tokens is " + std::to_string(request.max_tokens) + "; it must be at least 1 and fit int32");
  std::int32_t previous = 0;
  for (const std::int32_t checkpoint : request.checkpoints) {
    if (checkpoint <= previous)
      throw RequestError("checkpoints contain " + std::to_string(checkpoint) + " after " + std::to_string(previous) +
                         "; they must be positive and ascending");
    previous = checkpoint;
  }
}

}  // namespace

Scheduler::Scheduler(const Options& options) : state_(options), vote_(options) {}

std::int64_t Scheduler::add(const NewRequest& request) {
  check(request);
  const auto prompt_length = static_cast<std::int64_t>(request.token_ids.size());
  const std::int64_t cap = std::min({prompt_length + request.max_tokens, std::int64_t{state_.options.max_model_len} + 1,
                                     std::int64_t{std::numeric_limits<std::int32_t>::max()}});
  Sequence& sequence = state_.sequences.create();
  const std::int64_t capacity = std::clamp(cap, prompt_length, prompt_length + reserved_outputs);
  sequence.tokens.assign(request.token_ids, static_cast<std::size_t>(capacity));
  sequence.prompt_length = static_cast<std::int32_t>(prompt_length);
  sequence.length_cap = static_cast<std::int32_t>(cap);
  sequence.end_token = request.end_token;
  sequence.checkpoints.assign(request.checkpoints.begin(), request.checkpoints.end());
  sequence.is_schedulable = request.is_schedulable;
  sequence.structured_status = request.is_structured ? 1 : 0;
  state_.waiting.push_new(sequence);
  return sequence.id;
}

std::int64_t Scheduler::abort(std::span<const std::int64_t> sequence_ids) {
  std::int64_t count = 0;
  for (const std::int64_t id : sequence_ids) {
    Sequence* sequence = state_.sequences.find(id);
    if (sequence != nullptr && finish_by_abort(*sequence)) ++count;
  }
  state_.num_aborted += count;
  return count;
}

bool Scheduler::finish_by_abort(Sequence& sequence) {
  if (sequence.is_finished()) return false;
  if (is_in_prefill(sequence)) {
    // It stands in no queue, so the traced system misses it. Its row closes it otherwise.
    if (state_.options.is_reference()) return false;
  } else if (sequence.status == Status::waiting) {
    state_.waiting.note_finished(sequence);
    if (!state_.options.is_reference()) state_.release_everything(sequence);
  } else {
    ++state_.num_finished_running;
  }
  sequence.status = Status::finished_aborted;
  return true;
}

bool Scheduler::is_in_prefill(const Sequence& sequence) const {
  if (phase_ == Phase::idle || step_.kind != StepKind::prefill) return false;
  return std::any_of(step_.rows.begin(), step_.rows.end(), [&](const Row& row) { return row.sequence == &sequence; });
}

void Scheduler::set_schedulable(std::int64_t sequence_id) {
  if (Sequence* sequence = state_.sequences.find(sequence_id)) sequence->is_schedulable = true;
}

Ballot Scheduler::begin_step(bool anyone_running, bool anyone_half_prefilled) {
  if (phase_ == Phase::planned)
    throw std::runtime_error("begin_step: step " + std::to_string(step_.number) + " has to be processed first");
  require(phase_ == Phase::idle, "begin_step: the step is open already; finish_step closes it");
  ballot_ = {vote_.round(anyone_running, anyone_half_prefilled), wants_prefill(state_)};
  phase_ = Phase::open;
  return ballot_;
}

bool Scheduler::try_prefill() {
  require(is_open(), "try_prefill: no step is open; begin_step opens it");
  require(ballot_.round != VoteRound::none && ballot_.wants,
          "try_prefill: this step holds no vote, or this rank did not want a prefill");
  require(phase_ == Phase::open, "try_prefill: this step has a prefill already");
  step_.kind = StepKind::prefill;
  plan_prefill(state_, step_);
  if (step_.rows.empty() && step_.dropped.empty()) return false;
  phase_ = Phase::prefill_ready;
  return true;
}

StepPlan Scheduler::finish_step(StepKind kind) {
  require(is_open(), "finish_step: no step is open; begin_step opens it");
  require(kind == StepKind::prefill || phase_ == Phase::open,
          "finish_step: a prefill is prepared, the step cannot become a decode");
  step_.kind = kind;
  if (kind == StepKind::prefill) {
    vote_.count_prefill();
  } else {
    decode_planner_.plan(state_, step_);
    vote_.count_decode();
  }
  phase_ = Phase::planned;
  StepPlan plan = build_plan(state_, step_);
  if (!step_.finished.empty()) unreleased_[step_.number].assign(plan.finished_ids.begin(), plan.finished_ids.end());
  return plan;
}

void Scheduler::check_due(std::int64_t step) const {
  if (phase_ == Phase::planned && step == step_.number) return;
  const std::string expected =
      phase_ == Phase::planned ? "step " + std::to_string(step_.number) + " is due" : "no step waits for a result";
  throw std::invalid_argument("the result is for step " + std::to_string(step) + "; " + expected);
}

StepOutcome Scheduler::process(const StepResult& result) {
  check_due(result.step);
  check_result(state_, step_, result);
  StepOutcome outcome = post_process(state_, step_, result);
  step_.clear();
  ++step_.number;
  phase_ = Phase::idle;
  return outcome;
}

void Scheduler::release(std::int64_t step) {
  if (step < 0 || step >= next_step())
    throw std::invalid_argument("cannot release step " + std::to_string(step) + "; " + std::to_string(next_step()) +
                                " steps were planned");
  const auto found = unreleased_.find(step);
  if (found == unreleased_.end()) return;
  for (const std::int64_t id : found->second)
    if (Sequence* sequence = state_.sequences.find(id)) release_unless_held(*sequence);
  unreleased_.erase(found);
}

void Scheduler::release_unless_held(Sequence& sequence) {
  sequence.is_kept = sequence.is_held;
  if (sequence.is_held) return;
  state_.release_everything(sequence);
  state_.forget_if_done(sequence);
}

void Scheduler::hold(std::int64_t sequence_id) {
  Sequence* sequence = state_.sequences.find(sequence_id);
  if (sequence == nullptr)
    throw std::invalid_argument("cannot hold sequence " + std::to_string(sequence_id) +
                                ": it is unknown or its memory was released");
  sequence->is_held = true;
}

void Scheduler::release_one(std::int64_t sequence_id) {
  Sequence* sequence = state_.sequences.find(sequence_id);
  if (sequence == nullptr) return;
  sequence->is_held = false;
  if (sequence->is_kept) release_unless_held(*sequence);
}

bool Scheduler::has_unfinished() const noexcept {
  return phase_ == Phase::planned || !state_.waiting.empty() || !state_.running.empty();
}

}  // namespace thalweg::scheduler
