#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <vector>

#include "thalweg/scheduler/ordering.hpp"

namespace thalweg::scheduler {

// Orders sequences by length, longest first; equals by prompt, longest first; who is still equal backwards.
//
// One number per sequence is sorted, made of the three. Sequences come in the order of the step before, and each grew a
// little since, so few of them are far from their places.
class RowOrder {
 public:
  // length_of, prompt_of: index -> std::int32_t. The result is a permutation of 0..count-1, valid until the next call.
  template <class LengthOf, class PromptOf>
  std::span<const std::uint32_t> sort(std::size_t count, LengthOf length_of, PromptOf prompt_of) {
    Range lengths;
    Range prompts;
    for (std::size_t i = 0; i < count; ++i) {
      lengths.add(length_of(i));
      prompts.add(prompt_of(i));
    }
    order_.resize(count);
    const int index_bits = std::bit_width(count);
    const int prompt_bits = prompts.num_bits();
    if (lengths.num_bits() + prompt_bits + index_bits > 64) return sort_by_comparing(length_of, prompt_of);

    items_.resize(count);
    const auto item = [&](std::size_t i) {
      const std::uint64_t lead = lengths.offset(length_of(i)) << prompt_bits | prompts.offset(prompt_of(i));
      return lead << index_bits | i;
    };
    if (count <= max_moving) {
      for (std::size_t i = 0; i < count; ++i) items_[i] = item(i);
      if (!sort_nearly_sorted(items_)) std::sort(items_.begin(), items_.end(), std::greater());
    } else {
      // A stable sort keeps equals backwards if they come backwards.
      for (std::size_t i = 0; i < count; ++i) items_[i] = item(count - 1 - i);
      sorter_.sort(items_, [&](std::uint64_t value) { return value >> index_bits; });
    }
    const std::uint64_t index_mask = (std::uint64_t{1} << index_bits) - 1;
    for (std::size_t i = 0; i < count; ++i) order_[i] = static_cast<std::uint32_t>(items_[i] & index_mask);
    return order_;
  }

 private:
  // Up to so many, moving what changed is faster than sorting in linear time.
  static constexpr std::size_t max_moving = 700;

  struct Range {
    std::int32_t smallest = std::numeric_limits<std::int32_t>::max();
    std::int32_t largest = std::numeric_limits<std::int32_t>::min();

    void add(std::int32_t value) noexcept {
      smallest = std::min(smallest, value);
      largest = std::max(largest, value);
    }
    std::uint64_t offset(std::int32_t value) const noexcept {
      return static_cast<std::uint64_t>(static_cast<std::int64_t>(value) - smallest);
    }
    int num_bits() const noexcept { return largest < smallest ? 0 : std::bit_width(offset(largest)); }
  };

  // For numbers that have no room in one.
  template <class LengthOf, class PromptOf>
  std::span<const std::uint32_t> sort_by_comparing(LengthOf length_of, PromptOf prompt_of) {
    for (std::size_t i = 0; i < order_.size(); ++i) order_[i] = static_cast<std::uint32_t>(i);
    std::sort(order_.begin(), order_.end(), [&](std::uint32_t a, std::uint32_t b) {
      if (length_of(a) != length_of(b)) return length_of(a) > length_of(b);
      return prompt_of(a) != prompt_of(b) ? prompt_of(a) > prompt_of(b) : a > b;
    });
    return order_;
  }

  std::vector<std::uint64_t> items_;
  std::vector<std::uint32_t> order_;
  DescendingSorter<std::uint64_t> sorter_;
};

}  // namespace thalweg::scheduler
