#pragma once

#include <cstddef>
#include <deque>
#include <vector>

#include "thalweg/scheduler/sequence.hpp"

namespace thalweg::scheduler {

// Sequences whose prompt is computed elsewhere or was forked: ready to decode, waiting for a place in the batch.
class PromptedQueue {
 public:
  void push(Sequence& sequence) {
    sequence.is_prompted = true;
    queue_.push_back(&sequence);
  }

  std::size_t size() const noexcept { return queue_.size(); }
  bool empty() const noexcept { return queue_.empty(); }
  const std::deque<Sequence*>& all() const noexcept { return queue_; }

  // One of them was given a final status; it stays in its place until it is taken out.
  void note_finished() noexcept { ++num_finished_; }

  // Append the finished ones to `out`, in queue order, and forget them. Free when there are none.
  void take_finished(std::vector<Sequence*>& out) {
    if (num_finished_ == 0) return;
    take_if([](const Sequence& sequence) { return sequence.is_finished(); }, queue_.size(), out);
    num_finished_ = 0;
  }

  // Append the first `count` whose data has arrived to `out`; the others keep their places.
  void take_schedulable(std::size_t count, std::vector<Sequence*>& out) {
    if (queue_.empty() || count == 0) return;
    take_if([](const Sequence& sequence) { return sequence.is_schedulable; }, count, out);
  }

 private:
  template <class Test>
  void take_if(Test test, std::size_t count, std::vector<Sequence*>& out) {
    std::erase_if(queue_, [&](Sequence* sequence) {
      if (count == 0 || !test(*sequence)) return false;
      --count;
      sequence->is_prompted = false;
      out.push_back(sequence);
      return true;
    });
  }

  std::deque<Sequence*> queue_;
  std::size_t num_finished_ = 0;
};

}  // namespace thalweg::scheduler
