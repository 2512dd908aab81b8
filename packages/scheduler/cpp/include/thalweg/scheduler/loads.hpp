#pragma once

#include <cstdint>

#include "thalweg/scheduler/requests.hpp"

namespace thalweg::scheduler {

// A sequence of which somebody else fills the first `num_computed` cache entries: a store, or another engine.
//
// It gets all its memory at once and queues up, not schedulable before its data has arrived. nullptr, and nothing
// happens, when memory is short now. Throws RequestError for a sequence that could never run here.
Sequence* load(CoreState& state, NewRequest request, std::int64_t num_computed);

}  // namespace thalweg::scheduler
