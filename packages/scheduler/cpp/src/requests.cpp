#include "thalweg/scheduler/requests.hpp"

#include <algorithm>
#include <limits>
#include <string>

#include "thalweg/scheduler/errors.hpp"

namespace thalweg::scheduler {
namespace {

constexpr std::int64_t largest = std::numeric_limits<std::int32_t>::max();

void check_lengths(const NewRequest& request) {
  const auto num_tokens = static_cast<std::int64_t>(request.token_ids.size());
  const std::int64_t prompt_length = request.prompt_length.value_or(num_tokens);
  if (prompt_length < 1 || prompt_length > num_tokens)
    throw RequestError("prompt_length is " + std::to_string(prompt_length) + "; with " + std::to_string(num_tokens) +
                       " tokens it must be 1 to " + std::to_string(num_tokens));
  if (request.max_tokens < 1 || request.max_tokens > largest)
    throw RequestError("max_tokens is " + std::to_string(request.max_tokens) + "; it must be at least 1 and fit int32");
  if (num_tokens - prompt_length >= request.max_tokens)
    throw RequestError("max_tokens is " + std::to_string(request.max_tokens) + "; there are " +
                       std::to_string(num_tokens - prompt_length) + " output tokens already");
}

void check_checkpoints(std::span<const std::int32_t> checkpoints) {
  std::int32_t previous = 0;
  for (const std::int32_t checkpoint : checkpoints) {
    if (checkpoint <= previous)
      throw RequestError("checkpoints contain " + std::to_string(checkpoint) + " after " + std::to_string(previous) +
                         "; they must be positive and ascending");
    previous = checkpoint;
  }
}

}  // namespace

void check_request(const NewRequest& request) {
  if (request.token_ids.empty()) throw RequestError("token_ids is empty; a prompt has at least one token");
  const auto smallest = std::min_element(request.token_ids.begin(), request.token_ids.end());
  if (*smallest < 0) throw RequestError("token_ids contains " + std::to_string(*smallest) + "; ids are 0 or more");
  check_lengths(request);
  check_checkpoints(request.checkpoints);
}

Sequence& make_sequence(CoreState& state, const NewRequest& request) {
  const auto num_tokens = static_cast<std::int64_t>(request.token_ids.size());
  const std::int64_t prompt_length = request.prompt_length.value_or(num_tokens);
  const std::int64_t cap =
      std::min({prompt_length + request.max_tokens, std::int64_t{state.options.max_model_len} + 1, largest});
  Sequence& sequence = state.sequences.create();
  sequence.tokens.assign(request.token_ids);
  sequence.prompt_length = static_cast<std::int32_t>(prompt_length);
  sequence.length_cap = static_cast<std::int32_t>(cap);
  sequence.end_token = request.end_token < 0 ? no_token : request.end_token;
  sequence.checkpoints.assign(request.checkpoints.begin(), request.checkpoints.end());
  sequence.is_schedulable = request.is_schedulable;
  sequence.structured_status = request.is_structured ? 1 : 0;
  return sequence;
}

}  // namespace thalweg::scheduler
