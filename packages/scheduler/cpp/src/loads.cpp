#include "thalweg/scheduler/loads.hpp"

#include <string>

#include "thalweg/scheduler/errors.hpp"

namespace thalweg::scheduler {
namespace {

void check_length(const CoreState& state, std::int64_t num_tokens) {
  const std::int64_t longest = state.options.longest_prompt();
  if (num_tokens > longest)
    throw RequestError(std::to_string(num_tokens) + " tokens are too long; a prompt has at most " +
                       std::to_string(longest));
  if (state.blocks_for(num_tokens) >= state.blocks.capacity())
    throw RequestError(std::to_string(num_tokens) + " tokens need more than all " +
                       std::to_string(state.blocks.capacity() - 1) + " blocks");
}

void check_engine_type(const CoreState& state, bool is_ready, std::int64_t num_tokens, std::int64_t num_computed) {
  if (state.options.engine_type == EngineType::prompt && is_ready)
    throw RequestError("the sequence is ready to decode; a prefill-only engine cannot continue it");
  if (state.options.engine_type == EngineType::completion && !is_ready)
    throw RequestError("num_computed_tokens is " + std::to_string(num_computed) +
                       "; a decode-only engine needs output tokens and all but the last of " +
                       std::to_string(num_tokens) + " tokens computed");
}

}  // namespace

Sequence* load(CoreState& state, NewRequest request, std::int64_t num_computed) {
  request.is_schedulable = false;
  check_request(request);
  const auto num_tokens = static_cast<std::int64_t>(request.token_ids.size());
  if (num_computed < 0 || num_computed >= num_tokens)
    throw RequestError("num_computed_tokens is " + std::to_string(num_computed) + "; with " +
                       std::to_string(num_tokens) + " tokens it must be 0 to " + std::to_string(num_tokens - 1));
  const bool is_ready = request.prompt_length.value_or(num_tokens) < num_tokens && num_computed == num_tokens - 1;
  check_length(state, num_tokens);
  check_engine_type(state, is_ready, num_tokens, num_computed);

  Memory memory;
  if (!state.try_take(state.blocks_for(num_tokens), memory)) return nullptr;
  Sequence& sequence = make_sequence(state, request);
  sequence.blocks.assign(memory.blocks.begin(), memory.blocks.end());
  sequence.state_slot = memory.state_slot;
  sequence.computed = static_cast<std::int32_t>(num_computed);
  if (is_ready) state.prompted.push(sequence);
  else state.waiting.push_loaded(sequence);
  return &sequence;
}

}  // namespace thalweg::scheduler
