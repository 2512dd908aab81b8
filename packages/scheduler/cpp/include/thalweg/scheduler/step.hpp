#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "thalweg/scheduler/copy_list.hpp"
#include "thalweg/scheduler/sequence.hpp"
#include "thalweg/scheduler/step_plan.hpp"

namespace thalweg::scheduler {

// One sequence in one step, with what the plan said about it.
struct Row {
  Sequence* sequence = nullptr;
  std::int32_t query_length = 0;
  std::int32_t previous_row = -1;  // of the same sequence in the decode step in flight, -1 = it is not in it
  std::int32_t read_slot = 0;
  std::int32_t write_slot = 0;
};

// One step from its planning until its result was processed.
struct Step {
  std::int64_t number = 0;
  StepKind kind = StepKind::decode;
  bool is_corrected = false;
  std::int64_t num_batched_tokens = 0;
  std::size_t num_blocks = 0;        // that the rows own
  std::size_t num_chunk_tokens = 0;  // of the rows of a prefill
  std::vector<Row> rows;
  std::vector<Sequence*> finished;   // left running with this step
  std::vector<Sequence*> dropped;    // left waiting, or preempted for good
  std::vector<Sequence*> restarted;  // preempted, to be recomputed
  CopyList copies;

  // Ready for another step, with the capacity of this one.
  void clear() noexcept {
    is_corrected = false;
    num_batched_tokens = 0;
    num_blocks = 0;
    num_chunk_tokens = 0;
    rows.clear();
    finished.clear();
    dropped.clear();
    restarted.clear();
    copies.clear();
  }
};

}  // namespace thalweg::scheduler
