#include "correction.hpp"

#include <utility>

namespace py = pybind11;

namespace thalweg::scheduler {

CorrectionConverter::CorrectionConverter()
    : correction_type_("StepCorrection", {"query_lengths", "context_lengths", "committed_lengths", "anchor_token_ids",
                                          "draft_token_ids", "draft_read_slots", "draft_write_slots", "is_live"}) {}

py::object CorrectionConverter::convert(StepCorrection&& given, std::size_t draft_length) const {
  auto* correction = new StepCorrection(std::move(given));
  const py::capsule owner = own(correction);
  const ArrayMaker array(owner, empty_);
  return correction_type_.make({
      array(correction->query_lengths),
      array(correction->context_lengths),
      array(correction->committed_lengths),
      array(correction->anchor_token_ids),
      array(correction->draft_token_ids, correction->query_lengths.size(), draft_length),
      array(correction->draft_read_slots),
      array(correction->draft_write_slots),
      array(correction->is_live),
  });
}

}  // namespace thalweg::scheduler
