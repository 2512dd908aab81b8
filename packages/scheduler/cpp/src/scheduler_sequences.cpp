// The calls of `Scheduler` that are about single sequences: they come, change, end, and give their memory back.
#include <algorithm>
#include <iterator>
#include <stdexcept>
#include <string>
#include <unordered_set>
#include <utility>

#include "thalweg/scheduler/errors.hpp"
#include "thalweg/scheduler/forks.hpp"
#include "thalweg/scheduler/loads.hpp"
#include "thalweg/scheduler/scheduler.hpp"

namespace thalweg::scheduler {
namespace {

// Sequences that stand in the queues, as planning would meet them: the order in which their memory goes.
std::vector<Sequence*> in_queue_order(const CoreState& state, std::vector<Sequence*> sequences) {
  if (sequences.size() < 2) return sequences;
  const std::unordered_set<const Sequence*> wanted(sequences.begin(), sequences.end());
  sequences.clear();
  for (const auto* queue : {&state.waiting.holders(), &state.waiting.others(), &state.prompted.all()})
    std::copy_if(queue->begin(), queue->end(), std::back_inserter(sequences),
                 [&](const Sequence* sequence) { return wanted.contains(sequence); });
  return sequences;
}

}  // namespace

std::int64_t Scheduler::add(const NewRequest& request) {
  if (state_.options.engine_type == EngineType::completion)
    throw std::runtime_error("add: a decode-only engine cannot prefill; add_loaded takes what others prefilled");
  check_request(request);
  Sequence& sequence = make_sequence(state_, request);
  state_.waiting.push_new(sequence);
  return sequence.id;
}

std::optional<std::int64_t> Scheduler::add_loaded(const NewRequest& request, std::int64_t num_computed) {
  const Sequence* sequence = load(state_, request, num_computed);
  return sequence == nullptr ? std::nullopt : std::optional(sequence->id);
}

std::optional<std::int64_t> Scheduler::fork(std::int64_t sequence_id, std::optional<std::int64_t> last_token_id) {
  Sequence& parent = known("fork", sequence_id);
  if (parent.is_finished())
    throw RequestError("cannot fork sequence " + std::to_string(sequence_id) + ": it is finished");
  check_may_fork(parent);
  const Sequence* child = scheduler::fork(state_, parent, last_token_id);
  return child == nullptr ? std::nullopt : std::optional(child->id);
}

// What the device holds of the parent must be what the scheduler thinks, give or take one decode step.
void Scheduler::check_may_fork(const Sequence& parent) const {
  if (steps_.num_unprocessed() > 1)
    throw std::runtime_error("fork: step " + std::to_string(steps_.due().number) +
                             " has to be processed first; two are unprocessed");
  const std::string name = "fork: sequence " + std::to_string(parent.id);
  if (is_in_prefill(parent)) throw std::runtime_error(name + " is part of a prefill that was not processed yet");
  if (parent.owns_memory() && !parent.is_schedulable) throw std::runtime_error(name + " is still being loaded");
}

std::int64_t Scheduler::abort(std::span<const std::int64_t> sequence_ids) {
  std::int64_t count = 0;
  std::vector<Sequence*> queued;
  for (const std::int64_t id : sequence_ids) {
    Sequence* sequence = state_.sequences.find(id);
    if (sequence != nullptr && finish_by_abort(*sequence, queued)) ++count;
  }
  state_.num_aborted += count;
  if (state_.options.is_reference()) return count;
  for (Sequence* sequence : in_queue_order(state_, std::move(queued))) state_.release_unless_held(*sequence);
  return count;
}

bool Scheduler::finish_by_abort(Sequence& sequence, std::vector<Sequence*>& queued) {
  if (sequence.is_finished()) return false;
  const bool is_planned = is_in_prefill(sequence);
  // It stands in no queue, so the traced system misses it. Its row closes it otherwise.
  if (is_planned && state_.options.is_reference()) return false;
  const bool is_queued = !is_planned && sequence.status == Status::waiting;
  if (is_queued && sequence.is_prompted) state_.prompted.note_finished();
  else if (is_queued) state_.waiting.note_finished(sequence);
  else if (!is_planned) ++state_.num_finished_running;
  sequence.status = Status::finished_aborted;
  if (is_queued) queued.push_back(&sequence);
  return true;
}

// In the rows of a prefill that is prepared or not processed: it stands in no queue.
bool Scheduler::is_in_prefill(const Sequence& sequence) const {
  bool is_found = false;
  steps_.for_each([&](const Step& step) {
    is_found = is_found || (step.kind == StepKind::prefill &&
                            std::any_of(step.rows.begin(), step.rows.end(),
                                        [&](const Row& row) { return row.sequence == &sequence; }));
  });
  return is_found;
}

void Scheduler::set_schedulable(std::int64_t sequence_id) {
  if (Sequence* sequence = state_.sequences.find(sequence_id)) sequence->is_schedulable = true;
}

void Scheduler::release(std::int64_t step) {
  if (step < 0 || step >= next_step())
    throw std::invalid_argument("cannot release step " + std::to_string(step) + "; " + std::to_string(next_step()) +
                                " steps were planned");
  if (const auto finished = unreleased_.find(step); finished != unreleased_.end()) {
    for (const std::int64_t id : finished->second) {
      Sequence* sequence = state_.sequences.find(id);
      if (sequence == nullptr) continue;
      state_.release_unless_held(*sequence);
      state_.forget_if_done(*sequence);
    }
    unreleased_.erase(finished);
  }
  if (const auto copied = copying_.find(step - 1); copied != copying_.end()) {
    state_.release_sources(copied->second);
    copying_.erase(copied);
  }
}

Sequence& Scheduler::known(const char* purpose, std::int64_t sequence_id) const {
  Sequence* sequence = state_.sequences.find(sequence_id);
  if (sequence != nullptr) return *sequence;
  throw RequestError("cannot " + std::string(purpose) + " sequence " + std::to_string(sequence_id) +
                     ": it is unknown or its memory was released");
}

const Sequence& Scheduler::sequence(std::int64_t sequence_id) const { return known("show", sequence_id); }

void Scheduler::hold(std::int64_t sequence_id) { known("hold", sequence_id).is_held = true; }

void Scheduler::release_one(std::int64_t sequence_id) {
  Sequence* sequence = state_.sequences.find(sequence_id);
  if (sequence == nullptr) return;
  sequence->is_held = false;
  if (sequence->is_kept) state_.release_unless_held(*sequence);
  else if (state_.options.engine_type == EngineType::prompt) hand_over(*sequence);
  state_.forget_if_done(*sequence);
}

// A completed prompt leaves a prefill-only engine; does nothing for any other sequence.
void Scheduler::hand_over(Sequence& sequence) {
  const auto place = std::find(state_.running.begin(), state_.running.end(), &sequence);
  if (place == state_.running.end()) return;
  state_.release_everything(sequence);
  // If it ended and still waits for its record, the next plan drops it.
  if (sequence.is_finished() && !sequence.is_reported && !state_.options.is_reference()) return;
  if (sequence.is_finished()) --state_.num_finished_running;
  state_.running.erase(place);
  sequence.has_left = true;
}

}  // namespace thalweg::scheduler
