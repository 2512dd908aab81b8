#include "thalweg/scheduler/correction.hpp"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "thalweg/scheduler/copy_few.hpp"

namespace thalweg::scheduler {
namespace {

void check_lengths(const CoreState& state, const Step& step, std::span<const std::int32_t> query_lengths) {
  if (query_lengths.size() != step.rows.size())
    throw std::invalid_argument("query_lengths has " + std::to_string(query_lengths.size()) +
                                " elements; this step needs " + std::to_string(step.rows.size()));
  std::int64_t sum = 0;
  for (const std::int32_t length : query_lengths) {
    if (length < 1 || length > state.options.step_tokens())
      throw std::invalid_argument("query_lengths contains " + std::to_string(length) + "; each must be from 1 to " +
                                  std::to_string(state.options.step_tokens()));
    sum += length;
  }
  if (sum != step.num_batched_tokens)
    throw std::invalid_argument("query_lengths sum to " + std::to_string(sum) + "; step " +
                                std::to_string(step.number) + " has " + std::to_string(step.num_batched_tokens));
}

// The step before this one was processed: what it changed for this row.
void refresh(Row& row) noexcept {
  Sequence& sequence = *row.sequence;
  row.read_slot = sequence.has_draft_info ? sequence.draft_slot : 0;
  sequence.has_draft_info = false;
  // A slot that was given back meanwhile still takes what the step in flight writes.
  if (sequence.draft_slot != 0) row.write_slot = sequence.draft_slot;
}

void write_drafts(const CoreState& state, const Row& row, std::span<std::int32_t> out) {
  if (row.sequence->num_drafts == 0) std::fill(out.begin(), out.end(), -1);
  else copy_few(state.drafts.at(row.write_slot).tokens().data(), out.size(), out.data());
}

}  // namespace

StepCorrection::StepCorrection(std::size_t rows, std::size_t draft_length)
    : storage(rows * ((6 + draft_length) * sizeof(std::int32_t) + sizeof(bool)), 8) {
  for (auto* column : {&query_lengths, &context_lengths, &committed_lengths, &anchor_token_ids, &draft_read_slots,
                       &draft_write_slots})
    *column = storage.take<std::int32_t>(rows);
  draft_token_ids = storage.take<std::int32_t>(rows * draft_length);
  is_live = storage.take<bool>(rows);
}

StepCorrection correct_step(CoreState& state, Step& step,
                            const std::optional<std::span<const std::int32_t>>& query_lengths) {
  if (query_lengths.has_value()) check_lengths(state, step, *query_lengths);
  const std::size_t width = state.drafts.length();
  StepCorrection correction(step.rows.size(), width);
  for (std::size_t i = 0; i < step.rows.size(); ++i) {
    Row& row = step.rows[i];
    const Sequence& sequence = *row.sequence;
    if (query_lengths.has_value()) row.query_length = (*query_lengths)[i];
    if (row.previous_row >= 0) refresh(row);
    correction.query_lengths[i] = row.query_length;
    correction.context_lengths[i] = sequence.computed + row.query_length;
    correction.committed_lengths[i] = sequence.length();
    correction.anchor_token_ids[i] = sequence.tokens[sequence.length() - 1];
    correction.draft_read_slots[i] = row.read_slot;
    correction.draft_write_slots[i] = row.write_slot;
    correction.is_live[i] = !sequence.is_finished();
    write_drafts(state, row, correction.draft_token_ids.subspan(i * width, width));
  }
  return correction;
}

}  // namespace thalweg::scheduler
