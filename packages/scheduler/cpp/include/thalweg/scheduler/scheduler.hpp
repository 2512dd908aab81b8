#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "thalweg/scheduler/core_state.hpp"
#include "thalweg/scheduler/decode.hpp"
#include "thalweg/scheduler/step_plan.hpp"
#include "thalweg/scheduler/step_result.hpp"
#include "thalweg/scheduler/step_vote.hpp"

namespace thalweg::scheduler {

struct NewRequest {
  std::span<const std::int32_t> token_ids{};
  std::int64_t max_tokens = 0;
  std::int32_t end_token = -1;  // -1 = none
  std::span<const std::int32_t> checkpoints{};
  bool is_schedulable = true;
  bool is_structured = false;
};

// The contract of thalweg.interfaces.Scheduler. One thread owns it; only the two pools may be used from others.
class Scheduler {
 public:
  explicit Scheduler(const Options& options);

  std::int64_t add(const NewRequest& request);
  std::int64_t abort(std::span<const std::int64_t> sequence_ids);
  void set_schedulable(std::int64_t sequence_id);

  Ballot begin_step(bool anyone_running, bool anyone_half_prefilled);
  bool try_prefill();
  StepPlan finish_step(StepKind kind);
  // Throws std::invalid_argument unless the result of `step` is the next to be processed.
  void check_due(std::int64_t step) const;
  StepOutcome process(const StepResult& result);

  void release(std::int64_t step);
  // Keep the sequence's memory past `release`. Throws std::invalid_argument for a sequence that is gone.
  void hold(std::int64_t sequence_id);
  // End a hold: the memory goes now if `release` passed it over, else when `release` gets to it.
  void release_one(std::int64_t sequence_id);

  BlockPool& blocks() noexcept { return state_.blocks; }
  BlockPool& state_slots() noexcept { return state_.state_slots; }
  // A sequence waits or runs, one that the next step removes included, or a plan waits for its result.
  bool has_unfinished() const noexcept;
  bool has_running() const noexcept { return state_.running.size() > state_.num_finished_running; }
  bool has_half_prefilled() const noexcept { return state_.waiting.num_half_prefilled() > 0; }

  const CoreState& state() const noexcept { return state_; }
  const Step& step() const noexcept { return step_; }
  std::int64_t next_step() const noexcept { return step_.number + (phase_ == Phase::planned ? 1 : 0); }
  std::uint32_t decode_steps() const noexcept { return vote_.decode_steps(); }

 private:
  // Where the current step is; each call is legal in one or two of them.
  enum class Phase { idle, open, prefill_ready, planned };

  bool is_open() const noexcept { return phase_ == Phase::open || phase_ == Phase::prefill_ready; }
  bool finish_by_abort(Sequence& sequence);
  bool is_in_prefill(const Sequence& sequence) const;
  void release_unless_held(Sequence& sequence);

  CoreState state_;
  StepVote vote_;
  DecodePlanner decode_planner_;
  Step step_;
  Phase phase_ = Phase::idle;
  Ballot ballot_;
  std::unordered_map<std::int64_t, std::vector<std::int64_t>> unreleased_;  // step number -> finished ids
};

}  // namespace thalweg::scheduler
