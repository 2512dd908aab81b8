#include "thalweg/scheduler/post_process.hpp"

#include <algorithm>
#include <bit>
#include <limits>
#include <stdexcept>
#include <string>

#include "thalweg/scheduler/copy_few.hpp"
#include "thalweg/scheduler/prefetch.hpp"

namespace thalweg::scheduler {
namespace {

void require_size(const char* name, std::size_t size, std::size_t wanted) {
  if (size != wanted)
    throw std::invalid_argument(std::string(name) + " has " + std::to_string(size) + " elements; this step needs " +
                                std::to_string(wanted));
}

// Every value is a number from 0 to 1. Read as an integer, such a value lies between the bits of 0 and of 1; whatever
// does not leaves a sign bit, and only then (-0 does too) are the values looked at one by one.
bool are_confidences(std::span<const float> values) {
  constexpr auto bits_of_one = std::bit_cast<std::uint32_t>(1.0F);
  std::uint32_t signs = 0;
  for (const float value : values) {
    const auto bits = std::bit_cast<std::uint32_t>(value);
    signs |= bits | (bits_of_one - bits);
  }
  if (signs >> 31 == 0) return true;
  return std::all_of(values.begin(), values.end(), [](float value) { return value >= 0.0F && value <= 1.0F; });
}

// Number of leading entries before the first -1. Without a branch, because nobody can guess the answer.
std::size_t count_accepted(std::span<const std::int32_t> drafts) {
  std::size_t count = 0;
  std::size_t is_accepted = 1;
  for (const std::int32_t draft : drafts) {
    is_accepted &= static_cast<std::size_t>(draft >= 0);
    count += is_accepted;
  }
  return count;
}

class Processor {
 public:
  Processor(CoreState& state, const Step& step, const StepResult& result)
      : state_(state),
        step_(step),
        result_(result),
        is_prefill_(step.kind == StepKind::prefill),
        draft_length_(state.drafts.length()),
        outcome_({.rows = step.rows.size(),
                  .draft_length = draft_length_,
                  .max_tokens = step.rows.size() * (1 + draft_length_),
                  .max_closed = step.finished.size() + step.dropped.size(),
                  .max_completed = hands_over(state) ? step.rows.size() : 0}) {}

  StepOutcome run() {
    outcome_.token_offsets[0] = 0;
    for (std::size_t i = 0; i < step_.rows.size(); ++i) {
      if (i + record_distance < step_.rows.size()) {
        const Row& ahead = step_.rows[i + record_distance];
        prefetch_record(ahead.sequence);
        state_.drafts.prefetch(ahead.write_slot);
      }
      Sequence& sequence = *step_.rows[i].sequence;
      process_row(i, sequence, step_.rows[i]);
      outcome_.token_offsets[i + 1] = static_cast<std::int32_t>(outcome_.token_ids.size());
      outcome_.num_output_tokens[i] = sequence.num_outputs();
    }
    requeue_chunks();
    // The traced system closed whatever it dropped, and nothing else.
    for (Sequence* sequence : step_.finished) leave(*sequence, !state_.options.is_reference());
    for (Sequence* sequence : step_.dropped) leave(*sequence, true);
    return std::move(outcome_);
  }

 private:
  static bool hands_over(const CoreState& state) noexcept { return state.options.engine_type == EngineType::prompt; }

  void process_row(std::size_t i, Sequence& sequence, const Row& row) {
    outcome_.finish_reasons[i] = 0;
    if (!is_prefill_ && sequence.status == Status::waiting) {
      // Preempted while the step was in flight: it starts again, and this step never happened.
      set_verification(i, 0, 0, {});
      return;
    }
    ++sequence.process_count;
    if (sequence.is_finished()) {
      set_verification(i, 0, 0, {});
      pass_over(sequence);
      return;
    }
    if (result_.has_row_status) sequence.structured_status = result_.row_status[i];
    if (is_prefill_) process_prompt(i, sequence, row.query_length);
    else process_decode(i, sequence, row);
    if (!sequence.is_finished()) return;
    outcome_.finish_reasons[i] = static_cast<std::int8_t>(sequence.status);
    sequence.is_reported = true;
    ++state_.num_finished_running;
    state_.draft_slots.release(sequence.draft_slot);
  }

  // Aborted while the step ran. The next decode step takes it out of running.
  void pass_over(Sequence& sequence) {
    state_.draft_slots.release(sequence.draft_slot);
    if (!is_prefill_) return;
    state_.running.push_back(&sequence);
    ++state_.num_finished_running;
  }

  void process_prompt(std::size_t i, Sequence& sequence, std::int32_t query_length) {
    sequence.computed += query_length;
    if (sequence.computed < sequence.length()) {
      set_verification(i, 0, 0, {});
      chunks_.push_back(&sequence);
      return;
    }
    state_.running.push_back(&sequence);
    const std::int32_t appended = append(sequence, {}, 0, result_.sampled_token_ids[i]);
    set_verification(i, std::min(appended, 1), std::min(appended, 1), {});
    if (!hands_over(state_)) state_.attach_padding(sequence);
    else if (!sequence.is_finished() || state_.options.is_reference()) grow(outcome_.completed_ids, sequence.id);
  }

  // Unfinished prompts go on first, in their order; the traced system reversed it.
  void requeue_chunks() {
    if (!state_.options.is_reference()) std::reverse(chunks_.begin(), chunks_.end());
    for (Sequence* sequence : chunks_) state_.waiting.push_half_prefilled(*sequence);
  }

  void process_decode(std::size_t i, Sequence& sequence, const Row& row) {
    const auto num_drafts = static_cast<std::size_t>(row.query_length - 1);
    const auto drafts = result_.accepted_token_ids.subspan(i * draft_length_, num_drafts);
    const std::size_t num_accepted = count_accepted(drafts);
    const std::int32_t appended = append(sequence, drafts, num_accepted, result_.sampled_token_ids[i]);
    sequence.computed += appended;  // the cache entries of rejected drafts are overwritten by the next step
    if (sequence.computed > sequence.length())
      throw InvariantError("sequence " + std::to_string(sequence.id) + " has more computed than committed tokens");
    if (appended == 0) {
      set_verification(i, 0, 0, {});
    } else {
      const auto confidences = state_.drafts.at(sequence.draft_slot).confidences();
      set_verification(i, row.query_length, static_cast<std::int32_t>(num_accepted) + 1, confidences);
    }
    if (draft_length_ == 0) return;
    // Without a correction, with which the step would have read what the one before wrote, nobody reads it any more.
    if (row.previous_row >= 0 && !step_.is_corrected) sequence.has_draft_info = false;
    attach_drafts(i, sequence);
  }

  // Append the accepted drafts and the sampled token up to the first that ends the sequence; returns how many.
  std::int32_t append(Sequence& sequence, std::span<const std::int32_t> drafts, std::size_t num_accepted,
                      std::int32_t sampled) {
    if (sequence.structured_status == -1) return fail_structured(sequence, sampled);
    // All of this is written, and then cut: the same work for any number of accepted drafts.
    std::int32_t* const out = outcome_.token_ids.data() + outcome_.token_ids.size();
    const std::span<std::int32_t> group(out, drafts.size() + 1);
    copy_few(drafts.data(), drafts.size(), out);
    group.back() = sampled;
    group[num_accepted] = sampled;
    const std::int32_t room = sequence.length_cap - sequence.length();
    const std::int32_t count = cut(sequence, group, std::min(static_cast<std::int32_t>(num_accepted) + 1, room));
    if (count == room && !sequence.is_finished()) sequence.status = Status::finished_length_capped;
    outcome_.token_ids = {outcome_.token_ids.data(), outcome_.token_ids.size() + static_cast<std::size_t>(count)};
    sequence.tokens.append(group, count);
    return count;
  }

  // How many of the first `count` tokens stay: an end token ends the sequence, and is the last.
  static std::int32_t cut(Sequence& sequence, std::span<const std::int32_t> group, std::int32_t count) {
    if (std::find(group.begin(), group.end(), sequence.end_token) == group.end()) [[likely]] return count;
    const auto kept = group.first(static_cast<std::size_t>(count));
    const auto end = std::find(kept.begin(), kept.end(), sequence.end_token);
    if (end == kept.end()) return count;
    sequence.status = Status::finished_stopped;
    return static_cast<std::int32_t>(end - kept.begin()) + 1;
  }

  // The traced system stores token 0 and reports the sampled one; the default rules append nothing.
  std::int32_t fail_structured(Sequence& sequence, std::int32_t sampled) {
    sequence.status = Status::finished_structured_failed;
    if (!state_.options.is_reference()) return 0;
    const std::int32_t stored = 0;
    sequence.tokens.append({&stored, 1});
    grow(outcome_.token_ids, sampled);
    return 1;
  }

  void attach_drafts(std::size_t i, Sequence& sequence) {
    if (sequence.has_draft_info)
      throw InvariantError("sequence " + std::to_string(sequence.id) + " wrote its draft slot twice without a read");
    sequence.has_draft_info = true;
    sequence.num_drafts = static_cast<std::int32_t>(draft_length_);
    const std::size_t begin = i * draft_length_;
    state_.drafts.at(sequence.draft_slot)
        .set(result_.draft_token_ids.data() + begin,
             result_.confidences.empty() ? nullptr : result_.confidences.data() + begin);
  }

  void set_verification(std::size_t i, std::int32_t num_verified, std::int32_t num_accepted,
                        std::span<const float> confidences) {
    outcome_.num_verified[i] = num_verified;
    outcome_.num_accepted[i] = num_accepted;
    float* const out = outcome_.verified_confidences.data() + i * draft_length_;
    if (confidences.empty()) std::fill_n(out, draft_length_, std::numeric_limits<float>::quiet_NaN());
    else copy_few(confidences.data(), draft_length_, out);
  }

  // The sequence is in no queue any more; its final record comes now unless a row brought it.
  void leave(Sequence& sequence, bool owes_record) {
    if (owes_record && !sequence.is_reported) {
      grow(outcome_.closed_ids, sequence.id);
      grow(outcome_.closed_reasons, static_cast<std::int8_t>(sequence.status));
      grow(outcome_.closed_num_output_tokens, sequence.num_outputs());
      sequence.is_reported = true;
    }
    sequence.has_left = true;
    state_.forget_if_done(sequence);
  }

  CoreState& state_;
  const Step& step_;
  const StepResult& result_;
  const bool is_prefill_;
  const std::size_t draft_length_;
  StepOutcome outcome_;
  std::vector<Sequence*> chunks_;
};

}  // namespace

void check_result(const CoreState& state, const Step& step, const StepResult& result) {
  const std::size_t rows = step.rows.size();
  const std::size_t num_drafts = step.kind == StepKind::prefill ? 0 : rows * state.drafts.length();
  require_size("sampled_token_ids", result.sampled_token_ids.size(), rows);
  require_size("accepted_token_ids", result.accepted_token_ids.size(), num_drafts);
  require_size("draft_token_ids", result.draft_token_ids.size(), num_drafts);
  if (!result.confidences.empty()) require_size("confidences", result.confidences.size(), num_drafts);
  if (result.has_row_status) require_size("row_status", result.row_status.size(), rows);
  if (!are_confidences(result.confidences))
    throw std::invalid_argument("confidences hold a value that is not a number from 0 to 1");
}

StepOutcome post_process(CoreState& state, const Step& step, const StepResult& result) {
  return Processor(state, step, result).run();
}

}  // namespace thalweg::scheduler
