#pragma once

#include <cstdint>

#include "thalweg/scheduler/options.hpp"

namespace thalweg::scheduler {

// Values of thalweg.interfaces.VoteRound.
enum class VoteRound : int { none = 0, all = 1, any = 2, prefill = 3 };

struct Ballot {
  VoteRound round = VoteRound::none;
  bool wants = false;
};

// The cadence of votes: which agreement the group needs before any rank may prefill at this point.
class StepVote {
 public:
  explicit StepVote(const Options& options)
      : interval_all_(static_cast<std::uint32_t>(options.prefill_interval_all)),
        interval_any_(static_cast<std::uint32_t>(options.prefill_interval_any)),
        interval_continue_(static_cast<std::uint32_t>(options.prefill_interval_continue)),
        is_reference_(options.is_reference()),
        engine_type_(options.engine_type) {}

  // anyone_*: over the whole group; some rank has a running sequence, some rank holds a half-prefilled one.
  VoteRound round(bool anyone_running, bool anyone_half_prefilled) const noexcept {
    if (engine_type_ == EngineType::prompt) return VoteRound::prefill;
    if (engine_type_ == EngineType::completion) return VoteRound::none;
    if (!is_reference_) {
      if (!anyone_running) return VoteRound::any;  // an idle group must not wait for the cadence
      if (anyone_half_prefilled && is_due(interval_continue_)) return VoteRound::any;
    }
    if (is_due(interval_any_)) return VoteRound::any;
    return decode_steps_ % interval_all_ == 0 ? VoteRound::all : VoteRound::none;
  }

  void count_decode() noexcept { ++decode_steps_; }
  void count_prefill() noexcept { decode_steps_ = 0; }
  std::uint32_t decode_steps() const noexcept { return decode_steps_; }

 private:
  bool is_due(std::uint32_t interval) const noexcept { return decode_steps_ > 0 && decode_steps_ % interval == 0; }

  std::uint32_t interval_all_;
  std::uint32_t interval_any_;
  std::uint32_t interval_continue_;
  bool is_reference_;
  EngineType engine_type_;
  std::uint32_t decode_steps_ = 0;  // since the last prefill step
};

}  // namespace thalweg::scheduler
