#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <vector>

namespace thalweg::scheduler {

// Stable descending sort in linear time: a radix sort over the range of the keys, which is narrow for lengths.
template <class Item>
class DescendingSorter {
 public:
  // key: Item -> an integer.
  template <class Key>
  void sort(std::vector<Item>& items, Key key) {
    if (items.size() < 2) return;
    using Value = std::invoke_result_t<Key, const Item&>;
    using Rank = std::make_unsigned_t<Value>;
    Value smallest = key(items[0]);
    Value largest = smallest;
    Value previous = smallest;
    bool is_in_order = true;
    for (const Item& item : items) {
      const Value value = key(item);
      is_in_order &= value <= previous;
      previous = value;
      smallest = std::min(smallest, value);
      largest = std::max(largest, value);
    }
    if (is_in_order) return;
    if (items.size() <= max_insertion) {
      insertion_sort(items, key);
      return;
    }
    // Ascending rank is descending key.
    const auto rank_of = [&](Value value) {
      return static_cast<Rank>(static_cast<Rank>(largest) - static_cast<Rank>(value));
    };
    const auto rank = [&](const Item& item) { return rank_of(key(item)); };
    const int num_bits = std::bit_width(rank_of(smallest));
    const int widest = items.size() < 512 ? 8 : max_digit_bits;
    const int num_passes = (num_bits + widest - 1) / widest;
    const int digit_bits = (num_bits + num_passes - 1) / num_passes;
    scratch_.resize(items.size());
    for (int i = 0; i < num_passes; ++i) pass(items, rank, i * digit_bits, digit_bits);
  }

 private:
  static constexpr std::size_t max_insertion = 24;
  static constexpr int max_digit_bits = 11;

  template <class Key>
  static void insertion_sort(std::vector<Item>& items, Key key) {
    for (std::size_t i = 1; i < items.size(); ++i) {
      const Item item = items[i];
      std::size_t at = i;
      for (; at > 0 && key(items[at - 1]) < key(item); --at) items[at] = items[at - 1];
      items[at] = item;
    }
  }

  // Stable sort by one digit of the rank.
  template <class Rank>
  void pass(std::vector<Item>& items, Rank rank, int shift, int digit_bits) {
    const std::size_t num_digits = std::size_t{1} << digit_bits;
    const auto digit = [&](const Item& item) { return (rank(item) >> shift) & (num_digits - 1); };
    std::fill_n(starts_.begin(), num_digits, 0u);
    for (const Item& item : items) ++starts_[digit(item)];
    std::uint32_t sum = 0;
    for (std::size_t i = 0; i < num_digits; ++i) {
      const std::uint32_t count = starts_[i];
      starts_[i] = sum;
      sum += count;
    }
    for (const Item& item : items) scratch_[starts_[digit(item)]++] = item;
    items.swap(scratch_);
  }

  std::vector<Item> scratch_;
  std::array<std::uint32_t, std::size_t{1} << max_digit_bits> starts_;
};

// Descending sort of items that are nearly in order, by moving those that are not. False, with the items in some other
// order, when they are not that nearly in order.
template <class Item>
bool sort_nearly_sorted(std::vector<Item>& items) {
  std::size_t moves_left = 8 * items.size();
  for (std::size_t i = 1; i < items.size(); ++i) {
    const Item item = items[i];
    std::size_t at = i;
    for (; at > 0 && items[at - 1] < item; --at) items[at] = items[at - 1];
    items[at] = item;
    if (i - at > moves_left) return false;
    moves_left -= i - at;
  }
  return true;
}

}  // namespace thalweg::scheduler
