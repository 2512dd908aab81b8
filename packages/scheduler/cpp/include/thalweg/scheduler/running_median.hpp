#pragma once

#include <cstddef>
#include <iterator>
#include <memory_resource>
#include <set>

namespace thalweg::scheduler {

// The median of a changing multiset in logarithmic time: its smaller half and its larger half, each kept sorted.
class RunningMedian {
 public:
  explicit RunningMedian(std::pmr::memory_resource* memory) : lower_(memory), upper_(memory) {}

  std::size_t size() const noexcept { return lower_.size() + upper_.size(); }

  void insert(double value) {
    (is_low(value) ? lower_ : upper_).insert(value);
    balance();
  }

  // `value` must be there.
  void erase(double value) {
    auto& half = is_low(value) ? lower_ : upper_;
    half.erase(half.find(value));
    balance();
  }

  // The mean of the middle two for an even count. There must be a value.
  double median() const noexcept {
    const double middle = *lower_.rbegin();
    return size() % 2 == 1 ? middle : (middle + *upper_.begin()) / 2;
  }

 private:
  using Half = std::pmr::multiset<double>;

  bool is_low(double value) const noexcept { return !lower_.empty() && value <= *lower_.rbegin(); }

  // The lower half has as many values as the upper one, or one more.
  void balance() {
    if (lower_.size() > upper_.size() + 1) upper_.insert(lower_.extract(std::prev(lower_.end())));
    if (lower_.size() < upper_.size()) lower_.insert(upper_.extract(upper_.begin()));
  }

  Half lower_;
  Half upper_;
};

}  // namespace thalweg::scheduler
