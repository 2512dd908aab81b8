#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "thalweg/scheduler/block_pool.hpp"
#include "thalweg/scheduler/draft_slots.hpp"
#include "thalweg/scheduler/draft_table.hpp"
#include "thalweg/scheduler/options.hpp"
#include "thalweg/scheduler/queues.hpp"
#include "thalweg/scheduler/sequence_store.hpp"
#include "thalweg/scheduler/step_plan.hpp"

namespace thalweg::scheduler {

struct Row {
  Sequence* sequence = nullptr;
  std::int32_t query_length = 0;
};

// One step from its planning until its result was processed.
struct Step {
  std::int64_t number = 0;
  StepKind kind = StepKind::decode;
  std::int64_t num_batched_tokens = 0;
  std::size_t num_blocks = 0;        // that the rows own
  std::size_t num_chunk_tokens = 0;  // of the rows of a prefill
  std::vector<Row> rows;
  std::vector<Sequence*> finished;   // left running with this step
  std::vector<Sequence*> dropped;    // left waiting, or preempted for good
  std::vector<Sequence*> restarted;  // preempted, to be recomputed

  void clear() noexcept {
    num_batched_tokens = 0;
    num_blocks = 0;
    num_chunk_tokens = 0;
    rows.clear();
    finished.clear();
    dropped.clear();
    restarted.clear();
  }
};

// Everything that planning and processing share: who waits, who runs, who owns what.
struct CoreState {
  explicit CoreState(const Options& given)
      : options(given),
        blocks(given.num_blocks),
        state_slots(given.num_state_slots),
        draft_slots(given.max_num_seqs),
        drafts(given.max_num_seqs, given.draft_length),
        waiting(!given.is_reference()) {}

  const Options options;
  BlockPool blocks;
  BlockPool state_slots;
  DraftSlots draft_slots;
  DraftTable drafts;
  SequenceStore sequences;
  WaitingQueues waiting;
  std::vector<Sequence*> running;  // in the order of the last decode step, then who joined since
  std::size_t num_finished_running = 0;  // finished ones stay in `running` until the next decode step is planned
  std::int64_t num_preempted = 0;
  std::int64_t num_aborted = 0;

  std::int64_t blocks_for(std::int64_t num_tokens) const noexcept {
    return (num_tokens + options.block_size - 1) / options.block_size;
  }

  // Append `count` blocks to the sequence's table; false, and nothing taken, when fewer are free.
  bool extend_blocks(Sequence& sequence, std::int64_t count) {
    const std::size_t owned = sequence.blocks.size();
    sequence.blocks.resize(owned + static_cast<std::size_t>(count));
    if (blocks.try_allocate(std::span(sequence.blocks).subspan(owned))) return true;
    sequence.blocks.resize(owned);
    return false;
  }

  // Give back blocks and state slot; does nothing for a sequence that owns none.
  void release_memory(Sequence& sequence) {
    if (sequence.state_slot >= 0) {
      const std::int32_t slot = sequence.state_slot;
      state_slots.release(std::span(&slot, 1));
      sequence.state_slot = -1;
    }
    blocks.release(sequence.blocks);
    sequence.blocks.clear();
  }

  void release_everything(Sequence& sequence) {
    draft_slots.release(sequence.draft_slot);
    release_memory(sequence);
  }

  // Destroy a sequence once its last record is out and its memory is back.
  void forget_if_done(Sequence& sequence) {
    if (sequence.has_left && !sequence.owns_memory()) sequences.destroy(sequence);
  }
};

}  // namespace thalweg::scheduler
