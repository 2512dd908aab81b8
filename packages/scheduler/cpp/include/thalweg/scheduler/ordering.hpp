#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace thalweg::scheduler {

// Stable descending sort in linear time: a radix sort over the range of the keys, which is narrow for lengths.
template <class Item>
class DescendingSorter {
 public:
  template <class Key>
  void sort(std::vector<Item>& items, Key key) {
    const std::size_t count = items.size();
    if (count < 2) return;
    if (load(items, key)) return;
    if (count <= max_insertion) {
      insertion_sort(count);
    } else {
      for (int shift = 0; shift < static_cast<int>(std::bit_width(range_)); shift += digit_bits) pass(count, shift);
    }
    for (std::size_t i = 0; i < count; ++i) items[i] = entries_[i].item;
  }

 private:
  struct Entry {
    std::uint32_t rank;  // largest key minus this key: ascending rank is descending key
    Item item;
  };
  static constexpr std::size_t max_insertion = 24;
  static constexpr int digit_bits = 8;

  // Fill entries_ and range_; true when the items are in order already.
  template <class Key>
  bool load(const std::vector<Item>& items, Key key) {
    const std::size_t count = items.size();
    entries_.resize(count);
    scratch_.resize(count);
    std::int32_t largest = key(items[0]);
    std::int32_t smallest = largest;
    std::int32_t previous = largest;
    bool in_order = true;
    for (std::size_t i = 0; i < count; ++i) {
      const std::int32_t value = key(items[i]);
      in_order &= value <= previous;
      previous = value;
      largest = std::max(largest, value);
      smallest = std::min(smallest, value);
      entries_[i] = {static_cast<std::uint32_t>(value), items[i]};
    }
    if (in_order) return true;
    for (std::size_t i = 0; i < count; ++i) entries_[i].rank = static_cast<std::uint32_t>(largest) - entries_[i].rank;
    range_ = static_cast<std::uint32_t>(largest - smallest);
    return false;
  }

  void insertion_sort(std::size_t count) {
    for (std::size_t i = 1; i < count; ++i) {
      const Entry entry = entries_[i];
      std::size_t at = i;
      for (; at > 0 && entries_[at - 1].rank > entry.rank; --at) entries_[at] = entries_[at - 1];
      entries_[at] = entry;
    }
  }

  void pass(std::size_t count, int shift) {
    std::array<std::uint32_t, 1 << digit_bits> starts{};
    const auto digit = [shift](const Entry& entry) { return (entry.rank >> shift) & ((1u << digit_bits) - 1); };
    for (std::size_t i = 0; i < count; ++i) ++starts[digit(entries_[i])];
    std::uint32_t sum = 0;
    for (std::uint32_t& start : starts) {
      const std::uint32_t here = start;
      start = sum;
      sum += here;
    }
    for (std::size_t i = 0; i < count; ++i) scratch_[starts[digit(entries_[i])]++] = entries_[i];
    entries_.swap(scratch_);
  }

  std::vector<Entry> entries_;
  std::vector<Entry> scratch_;
  std::uint32_t range_ = 0;
};

}  // namespace thalweg::scheduler
