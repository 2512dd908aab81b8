#pragma once

#include <cstdint>
#include <optional>

#include "thalweg/scheduler/core_state.hpp"

namespace thalweg::scheduler {

// A new sequence that goes on from where `parent`, an unfinished one, is. nullptr, and nothing happens, when memory is
// short now.
//
// A decoding parent has a child that is ready to decode; it may end with another token. A half-prefilled one has a
// child whose prefill goes on; it holds blocks, as its parent does, and goes before it. The child of a parent that owns
// nothing owns nothing. Full blocks are shared; the state slot and a partly filled block are copied by the next plan.
// Throws RequestError for a child that this engine cannot continue and for a token that cannot be replaced.
Sequence* fork(CoreState& state, Sequence& parent, std::optional<std::int64_t> last_token_id);

}  // namespace thalweg::scheduler
