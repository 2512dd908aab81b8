#include "thalweg/scheduler/post_process.hpp"

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <string>

namespace thalweg::scheduler {
namespace {

void require_size(const char* name, std::size_t size, std::size_t wanted) {
  if (size != wanted)
    throw std::invalid_argument(std::string(name) + " has " + std::to_string(size) + " elements; this step needs " +
                                std::to_string(wanted));
}

// Drafts for the sequence's next step. After a prompt nobody drafted, so padding keeps the row width constant.
void attach_drafts(const CoreState& state, const StepResult& result, bool is_prefill, std::size_t row,
                   Sequence& sequence) {
  const auto length = static_cast<std::size_t>(state.options.draft_length);
  if (length == 0) return;
  sequence.draft_confidences.clear();
  if (is_prefill) {
    sequence.drafts.assign(length, state.options.vocab_size - 1);
    return;
  }
  const auto begin = static_cast<std::ptrdiff_t>(row * length);
  const auto end = static_cast<std::ptrdiff_t>((row + 1) * length);
  sequence.drafts.assign(result.draft_token_ids.begin() + begin, result.draft_token_ids.begin() + end);
  if (!result.confidences.empty())
    sequence.draft_confidences.assign(result.confidences.begin() + begin, result.confidences.begin() + end);
  if (sequence.has_draft_info)
    throw InvariantError("sequence " + std::to_string(sequence.id) + " wrote its draft slot twice without a read");
  sequence.has_draft_info = true;
}

// Number of leading entries before the first -1.
std::int32_t count_accepted(std::span<const std::int32_t> accepted) {
  std::int32_t count = 0;
  for (const std::int32_t token : accepted) {
    if (token < 0) break;
    ++count;
  }
  return count;
}

// Append one token; true when it ends the sequence.
bool append(Sequence& sequence, std::int32_t token) {
  sequence.tokens.push_back(token);
  if (token == sequence.end_token) sequence.status = Status::finished_stopped;
  else if (sequence.length() >= sequence.length_cap) sequence.status = Status::finished_length_capped;
  return sequence.is_finished();
}

class Processor {
 public:
  Processor(CoreState& state, const Step& step, const StepResult& result)
      : state_(state), step_(step), result_(result), is_prefill_(step.kind == StepKind::prefill) {
    const std::size_t rows = step.rows.size();
    const auto draft_length = static_cast<std::size_t>(state.options.draft_length);
    outcome_.token_offsets.resize(rows + 1);
    outcome_.token_ids.reserve(rows * (1 + draft_length));
    outcome_.num_output_tokens.resize(rows);
    outcome_.finish_reasons.resize(rows);
    outcome_.num_verified.resize(rows);
    outcome_.num_accepted.resize(rows);
    outcome_.verified_confidences.assign(rows * draft_length, std::numeric_limits<float>::quiet_NaN());
  }

  StepOutcome run() {
    for (std::size_t i = 0; i < step_.rows.size(); ++i) {
      process_row(i);
      outcome_.token_offsets[i + 1] = static_cast<std::int32_t>(outcome_.token_ids.size());
      outcome_.num_output_tokens[i] = step_.rows[i].sequence->num_outputs();
    }
    // The traced system closed whatever it dropped, and nothing else.
    for (Sequence* sequence : step_.finished) leave(*sequence, !state_.options.is_reference());
    for (Sequence* sequence : step_.dropped) leave(*sequence, true);
    return std::move(outcome_);
  }

 private:
  void process_row(std::size_t i) {
    Sequence& sequence = *step_.rows[i].sequence;
    const std::int32_t query_length = step_.rows[i].query_length;
    ++sequence.process_count;
    if (sequence.is_finished()) {
      state_.draft_slots.release(sequence.draft_slot);
      if (is_prefill_) {
        state_.running.push_back(&sequence);
        ++state_.num_finished_running;
      }
      return;
    }
    const std::int32_t computed_before = sequence.computed;
    sequence.computed += query_length;
    if (result_.has_row_status) sequence.structured_status = result_.row_status[i];
    if (is_prefill_) {
      if (sequence.computed < sequence.length()) {
        state_.waiting.push_half_prefilled(sequence);
        return;
      }
      state_.running.push_back(&sequence);
    }
    append_tokens(i, sequence, query_length, computed_before);
    attach_drafts(state_, result_, is_prefill_, i, sequence);
    if (sequence.is_finished()) {
      outcome_.finish_reasons[i] = static_cast<std::int8_t>(sequence.status);
      sequence.is_reported = true;
      ++state_.num_finished_running;
      state_.draft_slots.release(sequence.draft_slot);
    }
  }

  void append_tokens(std::size_t i, Sequence& sequence, std::int32_t query_length, std::int32_t computed_before) {
    const auto draft_length = static_cast<std::size_t>(state_.options.draft_length);
    std::span<const std::int32_t> accepted;
    if (!is_prefill_) accepted = result_.accepted_token_ids.subspan(i * draft_length, static_cast<std::size_t>(query_length - 1));
    const std::int32_t num_accepted = count_accepted(accepted);
    const std::int32_t sampled = result_.sampled_token_ids[i];
    const std::int32_t length_before = sequence.length();
    if (sequence.structured_status == -1) {
      fail_structured(sequence, sampled);
    } else {
      bool has_ended = false;
      for (std::int32_t k = 0; k < num_accepted && !has_ended; ++k)
        has_ended = append(sequence, accepted[static_cast<std::size_t>(k)]);
      if (!has_ended) append(sequence, sampled);
      outcome_.token_ids.insert(outcome_.token_ids.end(), sequence.tokens.begin() + length_before, sequence.tokens.end());
    }
    const std::int32_t appended = sequence.length() - length_before;
    if (!is_prefill_) sequence.computed = computed_before + appended;
    if (sequence.computed > sequence.length())
      throw InvariantError("sequence " + std::to_string(sequence.id) + " has more computed than committed tokens");
    if (appended == 0) return;
    outcome_.num_verified[i] = is_prefill_ ? 1 : query_length;
    outcome_.num_accepted[i] = num_accepted + 1;
    copy_verified_confidences(i, sequence);
  }

  // The traced system stores token 0 and reports the sampled one; the default rules append nothing.
  void fail_structured(Sequence& sequence, std::int32_t sampled) {
    if (state_.options.is_reference()) {
      sequence.tokens.push_back(0);
      outcome_.token_ids.push_back(sampled);
    }
    sequence.status = Status::finished_structured_failed;
  }

  // The sequence is in no queue any more; its final record comes now unless a row brought it.
  void leave(Sequence& sequence, bool owes_record) {
    if (owes_record && !sequence.is_reported) {
      outcome_.closed_ids.push_back(sequence.id);
      outcome_.closed_reasons.push_back(static_cast<std::int8_t>(sequence.status));
      outcome_.closed_num_output_tokens.push_back(sequence.num_outputs());
      sequence.is_reported = true;
    }
    sequence.has_left = true;
    state_.forget_if_done(sequence);
  }

  void copy_verified_confidences(std::size_t i, const Sequence& sequence) {
    float* out = outcome_.verified_confidences.data() + i * static_cast<std::size_t>(state_.options.draft_length);
    std::copy(sequence.draft_confidences.begin(), sequence.draft_confidences.end(), out);
  }

  CoreState& state_;
  const Step& step_;
  const StepResult& result_;
  const bool is_prefill_;
  StepOutcome outcome_;
};

}  // namespace

void check_result(const CoreState& state, const Step& step, const StepResult& result) {
  const std::size_t rows = step.rows.size();
  const std::size_t drafts = step.kind == StepKind::prefill ? 0 : rows * static_cast<std::size_t>(state.options.draft_length);
  require_size("sampled_token_ids", result.sampled_token_ids.size(), rows);
  require_size("accepted_token_ids", result.accepted_token_ids.size(), drafts);
  require_size("draft_token_ids", result.draft_token_ids.size(), drafts);
  if (!result.confidences.empty()) require_size("confidences", result.confidences.size(), drafts);
  if (result.has_row_status) require_size("row_status", result.row_status.size(), rows);
}

StepOutcome post_process(CoreState& state, const Step& step, const StepResult& result) {
  return Processor(state, step, result).run();
}

}  // namespace thalweg::scheduler
