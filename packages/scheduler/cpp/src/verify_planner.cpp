#include "thalweg/scheduler/verify_planner.hpp"

#include <algorithm>
#include <span>

namespace thalweg::scheduler {

void VerifyPlanner::plan(CoreState& state, Step& step) {
  collect(state, step);
  const bool is_one_round = std::all_of(rounds_.begin(), rounds_.end(), [](const StepRounds& rounds) {
    return rounds.budget.data() == rounds.split.data() && rounds.budget.empty() == rounds.split.empty();
  });
  write(is_one_round);
  lengths_.resize(step.rows.size());
  state.verify_budget.verify_lengths(is_one_round ? split_survival_ : budget_survival_, split_survival_, offsets_,
                                     lengths_);
  step.num_batched_tokens = 0;
  for (std::size_t i = 0; i < step.rows.size(); ++i) {
    step.rows[i].query_length = lengths_[i];
    step.num_batched_tokens += lengths_[i];
  }
}

void VerifyPlanner::collect(const CoreState& state, const Step& step) {
  rounds_.clear();
  offsets_.assign(1, 0);
  for (const Row& row : step.rows) {
    const Sequence& sequence = *row.sequence;
    const auto num_drafts = static_cast<std::size_t>(sequence.num_drafts);
    const DraftRecord drafts = state.drafts.at(sequence.draft_slot);
    rounds_.push_back(rounds_for_step({.num_drafts = num_drafts,
                                       .has_draft_info = sequence.has_draft_info,
                                       .schedule_count = sequence.schedule_count,
                                       .process_count = sequence.process_count,
                                       .latest = drafts.confidences(),
                                       .previous = drafts.previous_confidences()}));
    offsets_.push_back(offsets_.back() + sequence.num_drafts);
  }
}

void VerifyPlanner::write(bool is_one_round) {
  const auto num_drafts = static_cast<std::size_t>(offsets_.back());
  split_survival_.resize(num_drafts);
  budget_survival_.resize(num_drafts);
  for (std::size_t i = 0; i < rounds_.size(); ++i) {
    const auto begin = static_cast<std::size_t>(offsets_[i]);
    const std::size_t count = static_cast<std::size_t>(offsets_[i + 1]) - begin;
    write_survival(rounds_[i].split, rounds_[i].unknown, std::span(split_survival_).subspan(begin, count));
    if (is_one_round) continue;
    write_survival(rounds_[i].budget, rounds_[i].unknown, std::span(budget_survival_).subspan(begin, count));
  }
}

}  // namespace thalweg::scheduler
