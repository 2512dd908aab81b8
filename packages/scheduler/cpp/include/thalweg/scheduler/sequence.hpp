#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory_resource>
#include <vector>

#include "thalweg/scheduler/token_log.hpp"

namespace thalweg::scheduler {

// Values of thalweg.interfaces.SequenceStatus; from finished_stopped up they are final and double as finish reasons.
enum class Status : std::int8_t {
  waiting = 0,
  running = 1,
  finished_stopped = 3,
  finished_length_capped = 4,
  finished_aborted = 5,
  finished_ignored = 6,
  finished_preempted = 7,
  finished_structured_failed = 8,
};

constexpr bool is_final(Status status) noexcept { return status >= Status::finished_stopped; }

// Equal to no token id, and not to the -1 that stands for a missing one.
constexpr std::int32_t no_token = std::numeric_limits<std::int32_t>::min();

// What the scheduler keeps of one request. What every decode step touches comes first.
struct alignas(64) Sequence {
  std::pmr::vector<std::int32_t> blocks;  // block table, in order of position
  std::int32_t prompt_length = 0;
  std::int32_t computed = 0;         // leading tokens whose cache entries exist
  std::int32_t state_slot = -1;      // -1 = owns none
  std::int32_t draft_slot = 0;       // 0 = owns none; the drafts themselves are in the DraftTable
  std::int32_t num_drafts = 0;       // attached to the next decode row
  Status status = Status::waiting;
  std::int8_t structured_status = 0;  // not 0: constrained by a grammar, cannot be recomputed; -1: failed
  bool has_draft_info = false;        // the draft slot was written and not read since
  bool is_schedulable = true;
  std::int32_t length_cap = 0;       // the sequence ends when it has this many tokens
  std::int32_t end_token = no_token;  // ends the sequence when sampled
  std::int64_t id = -1;
  std::uint32_t schedule_count = 0;  // steps planned with this sequence since it last (re)started
  std::uint32_t process_count = 0;   // of those, processed
  TokenLog tokens;                   // prompt and accepted output, never drafts
  bool is_reported = false;          // its one final record is out
  bool is_held = false;              // memory outlives `release`
  bool is_kept = false;              // `release` passed it over because it was held
  bool has_left = false;             // listed as finished or dropped by a plan whose result was processed
  bool is_prompted = false;          // ready to decode, but not running yet
  std::vector<std::int32_t> checkpoints;  // ascending positions at which a prefill chunk must end

  explicit Sequence(std::pmr::memory_resource* block_tables) : blocks(block_tables) {}

  std::int32_t length() const noexcept { return tokens.size(); }
  std::int32_t num_outputs() const noexcept { return length() - prompt_length; }
  bool is_finished() const noexcept { return is_final(status); }
  bool owns_memory() const noexcept { return state_slot >= 0 || !blocks.empty(); }
  // Steps planned and not processed. A restarted sequence forgets those that it was part of.
  std::int32_t num_in_flight() const noexcept {
    return std::max(0, static_cast<std::int32_t>(schedule_count - process_count));
  }

  // Forget everything computed: prompt and output are prefilled again as one prompt.
  void restart() noexcept {
    status = Status::waiting;
    computed = 0;
    num_drafts = 0;
    schedule_count = 0;
    process_count = 0;
    has_draft_info = false;
  }
};

}  // namespace thalweg::scheduler
