#include "plan.hpp"

#include <utility>

#include "arrays.hpp"

namespace py = pybind11;

namespace thalweg::scheduler {

PlanConverter::PlanConverter()
    : plan_type_("StepPlan", {"step", "kind", "num_batched_tokens", "sequence_ids", "query_lengths", "context_lengths",
                              "committed_lengths", "prompt_lengths", "block_offsets", "block_ids", "state_slots",
                              "window_valid_start", "tail_token_ids", "token_ids", "next_token_ids", "draft_token_ids",
                              "draft_read_slots", "draft_write_slots", "previous_rows", "state_copies", "block_copies",
                              "zero_state_slots", "finished_ids", "dropped_ids", "restarted_ids", "stats"}),
      stats_type_("StepStats", {"sum_query_times_context", "max_context_length", "min_context_length",
                                "attention_flops", "total_flops", "num_running", "num_waiting", "num_chunked",
                                "num_preempted", "num_aborted", "num_free_blocks", "num_free_state_slots",
                                "num_prompted", "prompt_tokens_running", "prompt_tokens_waiting",
                                "prompt_tokens_chunked", "num_finished", "finished_output_tokens",
                                "finished_prompt_tokens", "finished_output_context"}) {
  const py::object kind = py::module_::import("thalweg.interfaces").attr("StepKind");
  kinds_[static_cast<int>(StepKind::prefill)] = kind.attr("PREFILL");
  kinds_[static_cast<int>(StepKind::decode)] = kind.attr("DECODE");
}

py::object PlanConverter::convert(std::unique_ptr<StepPlan> given) const {
  StepPlan* const plan = given.release();
  const py::capsule owner = own(plan);
  const ArrayMaker array(owner, empty_);
  const PlanShape& shape = plan->shape;
  return plan_type_.make({
      py::int_(plan->step),
      kinds_[static_cast<int>(plan->kind)],
      py::int_(plan->num_batched_tokens),
      array(plan->sequence_ids),
      array(plan->query_lengths),
      array(plan->context_lengths),
      array(plan->committed_lengths),
      array(plan->prompt_lengths),
      array(plan->block_offsets),
      array(plan->block_ids),
      array(plan->state_slots),
      array(plan->window_valid_start),
      array(plan->tail_token_ids, shape.rows, shape.tail_length),
      array(plan->token_ids),
      array(plan->next_token_ids),
      array(plan->draft_token_ids, shape.rows, shape.draft_width),
      array(plan->draft_read_slots),
      array(plan->draft_write_slots),
      array(plan->previous_rows),
      array.pairs(plan->state_copies),
      array.pairs(plan->block_copies),
      empty_.int32,
      array(plan->finished_ids),
      array(plan->dropped_ids),
      array(plan->restarted_ids),
      stats(plan->stats),
  });
}

py::object PlanConverter::stats(const StepStats& stats) const {
  return stats_type_.make({
      py::int_(stats.sum_query_times_context),
      py::int_(stats.max_context_length),
      py::int_(stats.min_context_length),
      py::float_(stats.attention_flops),
      py::float_(stats.total_flops),
      py::int_(stats.num_running),
      py::int_(stats.num_waiting),
      py::int_(stats.num_chunked),
      py::int_(stats.num_preempted),
      py::int_(stats.num_aborted),
      py::int_(stats.num_free_blocks),
      py::int_(stats.num_free_state_slots),
      py::int_(stats.num_prompted),
      py::int_(stats.prompt_tokens_running),
      py::int_(stats.prompt_tokens_waiting),
      py::int_(stats.prompt_tokens_chunked),
      py::int_(stats.num_finished),
      py::int_(stats.finished_output_tokens),
      py::int_(stats.finished_prompt_tokens),
      py::int_(stats.finished_output_context),
  });
}

}  // namespace thalweg::scheduler
