#pragma once

#include <cstdint>

namespace thalweg::scheduler {

// `reference` keeps the rules of the traced system, known defects included; it exists to replay its traces.
enum class Policy { standard, reference };

// `prompt` only prefills and hands completed prompts over; `completion` only decodes what others prefilled.
enum class EngineType { normal, prompt, completion };

// Everything a scheduler is told, resolved and checked by thalweg.scheduler.config; the core trusts it.
struct Options {
  std::int32_t num_blocks = 0;       // the null block 0 included
  std::int32_t num_state_slots = 0;  // the null slot 0 included
  std::int32_t block_size = 0;       // tokens per block
  std::int32_t draft_length = 0;     // drafts per decode row, 0 = no speculation
  std::int32_t tail_length = 1;      // look-back tokens in a plan, the current one included
  std::int32_t vocab_size = 0;
  std::int32_t chunk_alignment = 1;  // prefill chunks are charged to the budget in multiples of this
  std::int32_t max_num_seqs = 0;
  std::int32_t max_num_batched_tokens = 0;
  std::int32_t max_model_len = 0;
  bool chunked_prefill = false;
  bool stop_preempted_request = true;
  std::int64_t prefill_max_sum_context = 0;  // full prompt lengths that one prefill step may add up to
  std::int32_t lookahead_tokens = 0;
  std::int32_t prefill_interval_all = 0;
  std::int32_t prefill_interval_any = 0;
  std::int32_t prefill_interval_continue = 0;
  Policy policy = Policy::standard;
  EngineType engine_type = EngineType::normal;
  bool plans_ahead = false;  // plan a step while a decode step is unprocessed

  bool is_reference() const noexcept { return policy == Policy::reference; }

  // Tokens that one step may add to a sequence.
  std::int32_t step_tokens() const noexcept { return draft_length + 1; }

  // Positions that buffers indexed by position have: the step itself, the optimism of a step in flight, and the drafter
  // run ahead of the longest sequence.
  std::int64_t runtime_max_model_len() const noexcept {
    return std::int64_t{max_model_len} + 2 * draft_length + (plans_ahead ? step_tokens() : 0);
  }

  // Longest sequence that may start a prefill.
  std::int32_t longest_prompt() const noexcept {
    return chunked_prefill || max_model_len < max_num_batched_tokens ? max_model_len : max_num_batched_tokens;
  }
};

}  // namespace thalweg::scheduler
