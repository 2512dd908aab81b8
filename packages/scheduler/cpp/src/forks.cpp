#include "thalweg/scheduler/forks.hpp"

#include <algorithm>
#include <limits>
#include <string>

#include "thalweg/scheduler/errors.hpp"

namespace thalweg::scheduler {
namespace {

void check_last_token(const Sequence& parent, bool is_decoding, std::int64_t token_id) {
  if (!is_decoding || parent.num_outputs() == 0)
    throw RequestError("last_token_id is " + std::to_string(token_id) +
                       "; only the last output token of a decoding sequence may be replaced");
  if (token_id < 0 || token_id > std::numeric_limits<std::int32_t>::max())
    throw RequestError("last_token_id is " + std::to_string(token_id) + "; it must be 0 or more and fit int32");
}

Sequence& make_child(CoreState& state, const Sequence& parent, std::optional<std::int64_t> last_token_id) {
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(parent.length()));
  parent.tokens.copy(0, parent.length(), tokens.data());
  if (last_token_id.has_value()) tokens.back() = static_cast<std::int32_t>(*last_token_id);
  Sequence& child = state.sequences.create();
  child.tokens.assign(tokens);
  child.prompt_length = parent.prompt_length;
  child.computed = parent.computed;
  child.length_cap = parent.length_cap;
  child.end_token = parent.end_token;
  child.checkpoints = parent.checkpoints;
  child.is_schedulable = parent.is_schedulable;
  child.structured_status = parent.structured_status;
  return child;
}

// Where a copy into `id` will come from; `id` itself when none is pending.
std::int32_t origin(const std::vector<Copy>& pending, std::int32_t id) {
  const auto found = std::find_if(pending.begin(), pending.end(), [&](const Copy& copy) { return copy.target == id; });
  return found == pending.end() ? id : found->source;
}

void add_copy(BlockPool& pool, std::vector<Copy>& pending, std::int32_t from, std::int32_t target) {
  // A parent that is itself a child of the same moment holds nothing yet: both copy from where it came.
  const std::int32_t source = origin(pending, from);
  pool.pin(std::span(&source, 1));
  pending.push_back({source, target});
}

void share(CoreState& state, const Sequence& parent, Sequence& child, const Memory& own) {
  const std::size_t num_full = static_cast<std::size_t>(parent.computed / state.options.block_size);
  const std::span full = std::span(parent.blocks).first(num_full);
  state.blocks.pin(full);
  child.blocks.assign(full.begin(), full.end());
  child.blocks.insert(child.blocks.end(), own.blocks.begin(), own.blocks.end());
  child.state_slot = own.state_slot;
  add_copy(state.state_slots, state.pending_copies.states, parent.state_slot, child.state_slot);
  if (parent.computed % state.options.block_size != 0)
    add_copy(state.blocks, state.pending_copies.blocks, parent.blocks[num_full], child.blocks[num_full]);
}

}  // namespace

Sequence* fork(CoreState& state, Sequence& parent, std::optional<std::int64_t> last_token_id) {
  const bool is_decoding = parent.status == Status::running || parent.is_prompted;
  if (is_decoding && state.options.engine_type == EngineType::prompt)
    throw RequestError("sequence " + std::to_string(parent.id) +
                       " is decoding; a prefill-only engine cannot continue a fork");
  if (last_token_id.has_value()) check_last_token(parent, is_decoding, *last_token_id);
  if (parent.blocks.empty()) {
    Sequence& child = make_child(state, parent, last_token_id);
    state.waiting.push_restarted(child);
    return &child;
  }
  Memory own;
  if (!state.try_take(state.blocks_for(parent.length()) - parent.computed / state.options.block_size, own))
    return nullptr;
  Sequence& child = make_child(state, parent, last_token_id);
  share(state, parent, child, own);
  if (is_decoding) state.prompted.push(child);
  else state.waiting.push_half_prefilled(child);
  return &child;
}

}  // namespace thalweg::scheduler
