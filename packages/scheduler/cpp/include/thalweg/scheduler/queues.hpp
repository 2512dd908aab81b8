#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "thalweg/scheduler/sequence.hpp"

namespace thalweg::scheduler {

// Waiting sequences: those that hold blocks (half-prefilled, loaded or forked prompts) are planned before those that
// hold none, each group in queue order. With `holders_first` off there is one queue, half-prefilled prompts at its
// front.
class WaitingQueues {
 public:
  explicit WaitingQueues(bool holders_first) : holders_first_(holders_first) {}

  void push_new(Sequence& sequence) {
    others_.push_back(&sequence);
    prompt_tokens_ += sequence.prompt_length;
  }
  void push_restarted(Sequence& sequence) {
    others_.push_front(&sequence);
    prompt_tokens_ += sequence.prompt_length;
  }
  void push_half_prefilled(Sequence& sequence) {
    (holders_first_ ? holders_ : others_).push_front(&sequence);
    count_half_prefilled(sequence);
  }
  // One that somebody else fills: it queues behind the block-holders.
  void push_loaded(Sequence& sequence) {
    (holders_first_ ? holders_ : others_).push_back(&sequence);
    count_half_prefilled(sequence);
  }

  std::size_t size() const noexcept { return holders_.size() + others_.size(); }
  bool empty() const noexcept { return size() == 0; }
  std::size_t num_half_prefilled() const noexcept { return num_half_prefilled_; }
  // Sums of the prompt lengths, kept up to date so that a step can show them however many wait.
  std::int64_t prompt_tokens() const noexcept { return prompt_tokens_; }
  std::int64_t prompt_tokens_half_prefilled() const noexcept { return prompt_tokens_half_prefilled_; }

  // The one to plan next, perhaps a finished one; nullptr when nobody waits. Block-holders whose data has not arrived
  // are passed over.
  Sequence* head() const noexcept {
    const std::size_t at = first_holder();
    if (at < holders_.size()) return holders_[at];
    return others_.empty() ? nullptr : others_.front();
  }

  // Whether some unfinished block-holder can go on.
  bool has_ready_holder() const noexcept {
    return std::any_of(holders_.begin(), holders_.end(), [](const Sequence* sequence) {
      return sequence->is_schedulable && !sequence->is_finished();
    });
  }

  // First unfinished one that holds no blocks; nullptr when there is none.
  Sequence* first_other() const noexcept {
    for (Sequence* sequence : others_)
      if (!sequence->is_finished()) return sequence;
    return nullptr;
  }

  void pop_head() {
    const std::size_t at = first_holder();
    const bool is_holder = at < holders_.size();
    const Sequence& sequence = is_holder ? *holders_[at] : *others_.front();
    if (sequence.is_finished()) --num_finished_;
    else if (!sequence.blocks.empty()) forget_half_prefilled(sequence);
    prompt_tokens_ -= sequence.prompt_length;
    if (is_holder) holders_.erase(holders_.begin() + static_cast<std::ptrdiff_t>(at));
    else others_.pop_front();
  }

  // A waiting sequence is about to end, while it still has its blocks; it stays in its place until it is taken out.
  void note_finished(const Sequence& sequence) noexcept {
    ++num_finished_;
    if (!sequence.blocks.empty()) forget_half_prefilled(sequence);
  }

  // Append the finished ones to `out`, in queue order, and forget them. Free when there are none.
  void take_finished(std::vector<Sequence*>& out) {
    if (num_finished_ == 0) return;
    take_finished_from(holders_, out);
    take_finished_from(others_, out);
    num_finished_ = 0;
  }

  const std::deque<Sequence*>& holders() const noexcept { return holders_; }
  const std::deque<Sequence*>& others() const noexcept { return others_; }

 private:
  std::size_t first_holder() const noexcept {
    std::size_t at = 0;
    while (at < holders_.size() && !holders_[at]->is_schedulable) ++at;
    return at;
  }

  void count_half_prefilled(const Sequence& sequence) noexcept {
    ++num_half_prefilled_;
    prompt_tokens_ += sequence.prompt_length;
    prompt_tokens_half_prefilled_ += sequence.prompt_length;
  }

  void forget_half_prefilled(const Sequence& sequence) noexcept {
    --num_half_prefilled_;
    prompt_tokens_half_prefilled_ -= sequence.prompt_length;
  }

  void take_finished_from(std::deque<Sequence*>& queue, std::vector<Sequence*>& out) {
    std::erase_if(queue, [&](Sequence* sequence) {
      if (!sequence->is_finished()) return false;
      out.push_back(sequence);
      prompt_tokens_ -= sequence->prompt_length;
      return true;
    });
  }

  bool holders_first_;
  std::deque<Sequence*> holders_;
  std::deque<Sequence*> others_;
  std::size_t num_half_prefilled_ = 0;  // unfinished ones that hold blocks
  std::size_t num_finished_ = 0;
  std::int64_t prompt_tokens_ = 0;
  std::int64_t prompt_tokens_half_prefilled_ = 0;
};

}  // namespace thalweg::scheduler
