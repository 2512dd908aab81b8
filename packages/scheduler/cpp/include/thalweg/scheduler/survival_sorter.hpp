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

// Sorts numbers from 0 to 1, largest first, in linear time: their bits, read as integers, have the same order. It keeps
// its memory, so that nothing is allocated once it has sorted as many.
class SurvivalSorter {
 public:
  // The result is valid until the next call.
  std::span<const float> sort(std::span<const float> survival) {
    sorted_.assign(survival.begin(), survival.end());
    if (sorted_.size() <= max_comparison) {
      std::sort(sorted_.begin(), sorted_.end(), std::greater());
      return sorted_;
    }
    scratch_.resize(sorted_.size());
    count_digits();
    for (int digit = 0; digit < num_digits; ++digit) pass(digit);
    return sorted_;
  }

 private:
  // 1.0F is 0x3f800000: thirty bits.
  static constexpr int digit_bits = 10;
  static constexpr int num_digits = 3;
  static constexpr std::size_t base = std::size_t{1} << digit_bits;
  static constexpr std::size_t max_comparison = 96;

  // Larger numbers have smaller digits.
  static std::size_t digit_of(float value, int digit) noexcept {
    return ~(std::bit_cast<std::uint32_t>(value) >> (digit * digit_bits)) & (base - 1);
  }

  void count_digits() noexcept {
    for (auto& count : counts_) count.fill(0);
    for (const float value : sorted_)
      for (int digit = 0; digit < num_digits; ++digit) ++counts_[static_cast<std::size_t>(digit)][digit_of(value, digit)];
  }

  // Stable sort by one digit.
  void pass(int digit) noexcept {
    auto& starts = counts_[static_cast<std::size_t>(digit)];
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
