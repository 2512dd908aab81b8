#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "thalweg/scheduler/block_pool.hpp"
#include "thalweg/scheduler/draft_slots.hpp"
#include "thalweg/scheduler/draft_table.hpp"
#include "thalweg/scheduler/flops.hpp"
#include "thalweg/scheduler/options.hpp"
#include "thalweg/scheduler/prompted_queue.hpp"
#include "thalweg/scheduler/queues.hpp"
#include "thalweg/scheduler/sequence_store.hpp"
#include "thalweg/scheduler/step.hpp"
#include "thalweg/scheduler/verify_budget.hpp"

namespace thalweg::scheduler {

// What a sequence computes with.
struct Memory {
  std::vector<std::int32_t> blocks;
  std::int32_t state_slot = -1;
};

// Everything that planning and processing share: who waits, who runs, who owns what.
struct CoreState {
  explicit CoreState(const Options& given, std::optional<FlopsEstimator> flops_estimator = std::nullopt)
      : options(given),
        flops(std::move(flops_estimator)),
        blocks(given.num_blocks),
        state_slots(given.num_state_slots),
        draft_slots(given.max_num_seqs),
        drafts(given.max_num_seqs, given.draft_length),
        waiting(!given.is_reference()) {}

  const Options options;
  const std::optional<FlopsEstimator> flops;  // nothing is counted without one
  BlockPool blocks;
  BlockPool state_slots;
  DraftSlots draft_slots;
  DraftTable drafts;
  VerifyBudget verify_budget;
  SequenceStore sequences;
  WaitingQueues waiting;
  PromptedQueue prompted;
  std::vector<Sequence*> running;  // in the order of the last decode step, then who joined since
  std::size_t num_finished_running = 0;  // finished ones stay in `running` until the next step takes them out
  CopyList pending_copies;               // for the next plan
  std::int64_t num_preempted = 0;
  std::int64_t num_aborted = 0;

  // Tokens of the steps that the sequence is in and that are not processed, if each adds all it may.
  std::int32_t tokens_in_flight(const Sequence& sequence) const noexcept {
    return sequence.num_in_flight() * options.step_tokens();
  }

  std::int64_t blocks_for(std::int64_t num_tokens) const noexcept {
    return (num_tokens + options.block_size - 1) / options.block_size;
  }

  // Until the drafter has run, padding stands in for the drafts of a running sequence.
  void attach_padding(Sequence& sequence) noexcept {
    if (options.draft_length == 0) return;
    sequence.num_drafts = options.draft_length;
    drafts.at(sequence.draft_slot).set_padding(options.vocab_size - 1);
  }

  void take_draft_slot(Sequence& sequence) {
    if (options.draft_length > 0) sequence.draft_slot = draft_slots.take();
  }

  // Append `count` blocks to the sequence's table; false, and nothing taken, when fewer are free.
  bool extend_blocks(Sequence& sequence, std::int64_t count) {
    const std::size_t owned = sequence.blocks.size();
    sequence.blocks.resize(owned + static_cast<std::size_t>(count));
    if (blocks.try_allocate(std::span(sequence.blocks).subspan(owned))) return true;
    sequence.blocks.resize(owned);
    return false;
  }

  // Blocks and a state slot; false, and nothing taken, when one of them is short now.
  bool try_take(std::int64_t num_blocks, Memory& memory) {
    if (state_slots.num_free() < 1 || blocks.can_allocate(num_blocks) != Fit::ok) return false;
    memory.blocks.resize(static_cast<std::size_t>(num_blocks));
    if (!blocks.try_allocate(memory.blocks)) return false;
    if (state_slots.try_allocate(std::span(&memory.state_slot, 1))) return true;
    blocks.release(memory.blocks);
    return false;
  }

  // Give back blocks and state slot; does nothing for a sequence that owns none.
  void release_memory(Sequence& sequence) {
    if (!pending_copies.empty()) cancel_copies(sequence);
    if (sequence.state_slot >= 0) {
      const std::int32_t slot = sequence.state_slot;
      state_slots.release(std::span(&slot, 1));
      sequence.state_slot = -1;
    }
    blocks.release(sequence.blocks);
    sequence.blocks.clear();
  }

  // Copies into memory that its owner gives up before they were planned.
  void cancel_copies(const Sequence& target) {
    release_sources({.states = take_into(pending_copies.states, std::span(&target.state_slot, 1)),
                     .blocks = take_into(pending_copies.blocks, target.blocks)});
  }

  // The copies were made, or never will be.
  void release_sources(const CopyList& copies) {
    for (const Copy& copy : copies.states) state_slots.release(std::span(&copy.source, 1));
    for (const Copy& copy : copies.blocks) blocks.release(std::span(&copy.source, 1));
  }

  void release_everything(Sequence& sequence) {
    draft_slots.release(sequence.draft_slot);
    release_memory(sequence);
  }

  // What a finished sequence owns goes back; if somebody holds its memory, that when the hold ends.
  void release_unless_held(Sequence& sequence) {
    draft_slots.release(sequence.draft_slot);
    sequence.is_kept = sequence.is_held;
    if (!sequence.is_held) release_memory(sequence);
  }

  // Destroy a sequence once its last record is out and its memory is back.
  void forget_if_done(Sequence& sequence) {
    if (sequence.has_left && !sequence.owns_memory()) sequences.destroy(sequence);
  }
};

}  // namespace thalweg::scheduler
