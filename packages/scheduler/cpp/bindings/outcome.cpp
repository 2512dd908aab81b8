#include "outcome.hpp"

#include <utility>

#include "arrays.hpp"

namespace py = pybind11;

namespace thalweg::scheduler {

OutcomeConverter::OutcomeConverter()
    : outcome_type_("StepOutcome", {"token_offsets", "token_ids", "num_output_tokens", "finish_reasons", "num_verified",
                                    "num_accepted", "verified_confidences", "closed_ids", "closed_reasons",
                                    "closed_num_output_tokens", "completed_ids"}) {}

py::object OutcomeConverter::convert(StepOutcome&& given, std::size_t draft_length) const {
  auto* outcome = new StepOutcome(std::move(given));
  const py::capsule owner = own(outcome);
  const ArrayMaker array(owner, empty_);
  return outcome_type_.make({
      array(outcome->token_offsets),
      array(outcome->token_ids),
      array(outcome->num_output_tokens),
      array(outcome->finish_reasons),
      array(outcome->num_verified),
      array(outcome->num_accepted),
      array(outcome->verified_confidences, outcome->num_output_tokens.size(), draft_length),
      array(outcome->closed_ids),
      array(outcome->closed_reasons),
      array(outcome->closed_num_output_tokens),
      array(outcome->completed_ids),
  });
}

}  // namespace thalweg::scheduler
