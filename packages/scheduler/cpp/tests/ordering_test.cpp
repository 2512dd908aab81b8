#include "thalweg/scheduler/ordering.hpp"

#include <algorithm>
#include <random>
#include <utility>
#include <vector>

#include "check.hpp"

using Item = std::pair<std::int32_t, int>;  // key, place before sorting

int main() {
  std::mt19937 random(5);
  thalweg::scheduler::DescendingSorter<Item> sorter;
  for (const std::int32_t range : {1, 2, 7, 300, 5000, 1 << 20, 1 << 30}) {
    for (const int count : {0, 1, 2, 10, 24, 25, 100, 511, 512, 2000}) {
      std::vector<Item> items;
      for (int i = 0; i < count; ++i) items.emplace_back(random() % static_cast<unsigned>(range), i);
      std::vector<Item> expected = items;
      const auto is_before = [](const Item& a, const Item& b) { return a.first > b.first; };
      std::stable_sort(expected.begin(), expected.end(), is_before);
      sorter.sort(items, [](const Item& item) { return item.first; });
      CHECK(items == expected);
      sorter.sort(items, [](const Item& item) { return item.first; });  // in order already
      CHECK(items == expected);
    }
  }
}
