#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace thalweg::scheduler {

// Where a descending order is cut: the last value inside, and how many of the values equal to it are inside.
struct Cut {
  float value = 0.0F;
  std::int32_t num_equal = 0;
};

// Orders numbers from 0 to 1, largest first, in linear time: their bits, read as integers, have the same order. It
// keeps its memory, so that nothing is allocated once it has seen as many.
class SurvivalOrder {
 public:
  // The result is valid until the next call.
  std::span<const float> sort(std::span<const float> survival) {
    sorted_.assign(survival.begin(), survival.end());
    if (sorted_.size() <= max_comparison) {
      std::sort(sorted_.begin(), sorted_.end(), std::greater());
      return sorted_;
    }
    scratch_.resize(sorted_.size());
    for (auto& counts : counts_) counts.fill(0);
    for (const float value : sorted_)
      for (std::size_t digit = 0; digit < num_digits; ++digit) ++counts_[digit][digit_of(value, digit)];
    for (std::size_t digit = 0; digit < num_digits; ++digit) pass(digit);
    return sorted_;
  }

  // The cut after the `count` largest; 1 <= count <= survival.size(). Only values that share their first digit with the
  // cut are compared.
  Cut cut(std::span<const float> survival, std::size_t count) {
    auto& counts = counts_[num_digits - 1];
    counts.fill(0);
    for (const float value : survival) ++counts[digit_of(value, num_digits - 1)];
    std::size_t first_digit = 0;
    std::size_t num_above = 0;
    while (num_above + counts[first_digit] < count) num_above += counts[first_digit++];

    scratch_.clear();
    for (const float value : survival)
      if (digit_of(value, num_digits - 1) == first_digit) scratch_.push_back(value);
    const auto last = scratch_.begin() + static_cast<std::ptrdiff_t>(count - num_above - 1);
    std::nth_element(scratch_.begin(), last, scratch_.end(), std::greater());
    return {.value = *last, .num_equal = static_cast<std::int32_t>(std::count(scratch_.begin(), last + 1, *last))};
  }

 private:
  // 1.0F is 0x3f800000: thirty bits.
  static constexpr std::size_t digit_bits = 10;
  static constexpr std::size_t num_digits = 3;
  static constexpr std::size_t base = std::size_t{1} << digit_bits;
  static constexpr std::size_t max_comparison = 96;

  // Larger numbers have smaller digits. -0 has those of 0.
  static std::size_t digit_of(float value, std::size_t digit) noexcept {
    return ~(std::bit_cast<std::uint32_t>(value) >> (digit * digit_bits)) & (base - 1);
  }

  // Stable sort by one digit.
  void pass(std::size_t digit) noexcept {
    auto& starts = counts_[digit];
    if (starts[digit_of(sorted_[0], digit)] == sorted_.size()) return;
    std::uint32_t sum = 0;
    for (std::uint32_t& start : starts) {
      const std::uint32_t count = start;
      start = sum;
      sum += count;
    }
    for (const float value : sorted_) scratch_[starts[digit_of(value, digit)]++] = value;
    sorted_.swap(scratch_);
  }

  std::vector<float> sorted_;
  std::vector<float> scratch_;
  std::array<std::array<std::uint32_t, base>, num_digits> counts_;
};

}  // namespace thalweg::scheduler
