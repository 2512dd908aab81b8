#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "thalweg/scheduler/core_state.hpp"
#include "thalweg/scheduler/correction.hpp"
#include "thalweg/scheduler/decode.hpp"
#include "thalweg/scheduler/requests.hpp"
#include "thalweg/scheduler/step_plan.hpp"
#include "thalweg/scheduler/step_result.hpp"
#include "thalweg/scheduler/step_ring.hpp"
#include "thalweg/scheduler/step_vote.hpp"

namespace thalweg::scheduler {

// The contract of thalweg.interfaces.Scheduler. One thread owns it; only the two pools may be used from others.
class Scheduler {
 public:
  explicit Scheduler(const Options& options, std::optional<FlopsEstimator> flops = std::nullopt);

  std::int64_t add(const NewRequest& request);
  // Nothing when memory is short now.
  std::optional<std::int64_t> add_loaded(const NewRequest& request, std::int64_t num_computed);
  std::optional<std::int64_t> fork(std::int64_t sequence_id, std::optional<std::int64_t> last_token_id = std::nullopt);
  std::int64_t abort(std::span<const std::int64_t> sequence_ids);
  void set_schedulable(std::int64_t sequence_id);

  Ballot begin_step(bool anyone_running, bool anyone_half_prefilled);
  bool try_prefill();
  StepPlan finish_step(StepKind kind);
  // Throws std::runtime_error unless `step` may be corrected now.
  void check_may_correct(std::int64_t step) const;
  StepCorrection correct(std::int64_t step,
                         const std::optional<std::span<const std::int32_t>>& query_lengths = std::nullopt);
  // The step of that result. Throws std::invalid_argument unless it is the next to be processed.
  const Step& due(std::int64_t step) const;
  StepOutcome process(const StepResult& result);

  void release(std::int64_t step);
  // Keep the sequence's memory past its end. Throws RequestError for a sequence that is gone.
  void hold(std::int64_t sequence_id);
  // End a hold: the memory goes now if it was due, else when it would have gone without the hold. Takes a completed
  // prompt out of a prefill-only engine.
  void release_one(std::int64_t sequence_id);
  // Throws RequestError for a sequence that is gone.
  const Sequence& sequence(std::int64_t sequence_id) const;

  // Throws ConfigError for a curve that is none or that does not hold all sequences that may run.
  void set_step_time_curve(std::vector<StepTime> points);
  void record_step_time(std::int64_t num_rows, std::int64_t graph_size, double forward_ms, double sampler_ms);

  BlockPool& blocks() noexcept { return state_.blocks; }
  BlockPool& state_slots() noexcept { return state_.state_slots; }
  // A sequence stands in a queue, one that the next step removes included, or a plan waits for its result, or for the
  // release of what it copied from.
  bool has_unfinished() const noexcept;
  bool has_running() const noexcept { return state_.running.size() > state_.num_finished_running; }
  bool has_half_prefilled() const noexcept { return state_.waiting.num_half_prefilled() > 0; }

  const CoreState& state() const noexcept { return state_; }
  std::int64_t next_step() const noexcept { return steps_.num_planned(); }
  std::uint32_t decode_steps() const noexcept { return vote_.decode_steps(); }

 private:
  // Where the step being planned is; each call is legal in one or two of them.
  enum class Phase { idle, open, prefill_ready };

  void check_may_begin() const;
  void check_kind(StepKind kind) const;
  void plan(Step& step, StepKind kind);
  void defer_releases(const Step& step);
  bool finish_by_abort(Sequence& sequence, std::vector<Sequence*>& queued);
  bool is_in_prefill(const Sequence& sequence) const;
  void check_may_fork(const Sequence& parent) const;
  void hand_over(Sequence& sequence);
  Sequence& known(const char* purpose, std::int64_t sequence_id) const;

  CoreState state_;
  StepVote vote_;
  DecodePlanner decode_planner_;
  StepRing steps_;
  Phase phase_ = Phase::idle;
  Ballot ballot_;
  std::unordered_map<std::int64_t, std::vector<std::int64_t>> unreleased_;  // step number -> finished ids
  std::unordered_map<std::int64_t, CopyList> copying_;                      // step number -> copies its plan listed
};

}  // namespace thalweg::scheduler
