#pragma once

#include <cstdint>

#include "thalweg/scheduler/step.hpp"

namespace thalweg::scheduler {

// The steps that are alive: planned ones whose results are due, at most two, and the one being planned.
//
// Results come in the order of the plans. Asynchronous scheduling plans one step while a decode step is unprocessed.
class StepRing {
 public:
  std::int64_t num_planned() const noexcept { return num_planned_; }
  std::int64_t num_unprocessed() const noexcept { return num_planned_ - num_processed_; }

  // The step being planned.
  Step& next() noexcept {
    Step& step = at(num_planned_);
    step.number = num_planned_;
    return step;
  }
  void commit() noexcept { ++num_planned_; }

  // The one whose result is due, and the one planned last; only while a step is unprocessed.
  Step& due() noexcept { return at(num_processed_); }
  const Step& due() const noexcept { return at(num_processed_); }
  Step& newest() noexcept { return at(num_planned_ - 1); }

  void finish_due() noexcept {
    due().clear();
    ++num_processed_;
  }

  // The decode step in flight while another one is planned; nullptr when there is none.
  const Step* in_flight() const noexcept { return num_unprocessed() > 0 ? &due() : nullptr; }

  template <class Visit>
  void for_each(Visit visit) const {
    for (const Step& step : steps_) visit(step);
  }

 private:
  Step& at(std::int64_t number) noexcept { return steps_[number % 2]; }
  const Step& at(std::int64_t number) const noexcept { return steps_[number % 2]; }

  Step steps_[2];
  std::int64_t num_planned_ = 0;
  std::int64_t num_processed_ = 0;
};

}  // namespace thalweg::scheduler
