#include "debug_state.hpp"

#include <pybind11/stl.h>

#include <vector>

namespace py = pybind11;

namespace thalweg::scheduler {
namespace {

using py::literals::operator""_a;

template <class Sequences>
void append_ids(py::list& ids, const Sequences& sequences) {
  for (const Sequence* sequence : sequences) ids.append(sequence->id);
}

py::dict describe(const CoreState& state, const Sequence& sequence) {
  const std::vector<std::int32_t> blocks(sequence.blocks.begin(), sequence.blocks.end());
  const std::int32_t in_flight = state.tokens_in_flight(sequence);
  return py::dict("status"_a = static_cast<int>(sequence.status), "len"_a = sequence.length(),
                  "prompt_len"_a = sequence.prompt_length, "num_computed"_a = sequence.computed,
                  "total_inflight"_a = in_flight,
                  "last_inflight"_a = in_flight > 0 ? state.options.step_tokens() : 0, "blocks"_a = blocks,
                  "state_slot"_a = sequence.state_slot, "draft_slot"_a = sequence.draft_slot,
                  "has_draft_info"_a = sequence.has_draft_info, "num_drafts"_a = sequence.num_drafts,
                  "schedule_count"_a = sequence.schedule_count, "process_count"_a = sequence.process_count,
                  "structured_status"_a = static_cast<int>(sequence.structured_status),
                  "is_schedulable"_a = sequence.is_schedulable);
}

}  // namespace

py::dict debug_state(const Scheduler& scheduler) {
  const CoreState& state = scheduler.state();
  py::list waiting, prompted, running;
  append_ids(waiting, state.waiting.holders());
  append_ids(waiting, state.waiting.others());
  append_ids(prompted, state.prompted.all());
  append_ids(running, state.running);
  py::dict sequences;
  state.sequences.for_each(
      [&](const Sequence& sequence) { sequences[py::int_(sequence.id)] = describe(state, sequence); });
  return py::dict("step"_a = scheduler.next_step(), "decode_step"_a = scheduler.decode_steps(), "waiting"_a = waiting,
                  "prompted"_a = prompted, "running"_a = running, "free_blocks"_a = state.blocks.free_ids(),
                  "free_state_slots"_a = state.state_slots.free_ids(),
                  "free_draft_slots"_a = state.draft_slots.free_ids(), "num_preempted"_a = state.num_preempted,
                  "num_aborted"_a = state.num_aborted, "sequences"_a = sequences);
}

}  // namespace thalweg::scheduler
