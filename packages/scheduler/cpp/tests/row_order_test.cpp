#include "thalweg/scheduler/row_order.hpp"

#include <algorithm>
#include <limits>
#include <random>
#include <vector>

#include "check.hpp"

using namespace thalweg::scheduler;

namespace {

struct Item {
  std::int32_t length;
  std::int32_t prompt;
  std::size_t index;
};

// What the order means, spelled out: shortest output first, the later of equals first, and then by length.
std::vector<std::uint32_t> expected_order(std::vector<Item> items) {
  std::stable_sort(items.begin(), items.end(),
                   [](const Item& a, const Item& b) { return a.length - a.prompt > b.length - b.prompt; });
  std::reverse(items.begin(), items.end());
  std::stable_sort(items.begin(), items.end(), [](const Item& a, const Item& b) { return a.length > b.length; });
  std::vector<std::uint32_t> order;
  for (const Item& item : items) order.push_back(static_cast<std::uint32_t>(item.index));
  return order;
}

void check(RowOrder& order, const std::vector<Item>& items) {
  const auto found = order.sort(
      items.size(), [&](std::size_t i) { return items[i].length; }, [&](std::size_t i) { return items[i].prompt; });
  CHECK((std::vector(found.begin(), found.end()) == expected_order(items)));
}

void any_lengths_are_ordered() {
  std::mt19937 random(11);
  RowOrder order;
  for (const unsigned range : {1u, 3u, 50u, 6000u, 1u << 30}) {
    for (const std::size_t count : {0u, 1u, 2u, 30u, 64u, 400u, 700u, 701u, 1500u}) {
      std::vector<Item> items;
      for (std::size_t i = 0; i < count; ++i) {
        const auto prompt = static_cast<std::int32_t>(1 + random() % range);
        items.push_back({prompt + static_cast<std::int32_t>(random() % range), prompt, i});
      }
      check(order, items);
    }
  }
}

void a_batch_that_grows_a_little_stays_in_order() {
  std::mt19937 random(12);
  RowOrder order;
  std::vector<Item> items;
  for (std::size_t i = 0; i < 100; ++i) items.push_back({static_cast<std::int32_t>(1 + random() % 300), 1, i});
  for (int step = 0; step < 50; ++step) {
    check(order, items);
    std::vector<Item> next;
    for (const std::uint32_t i : expected_order(items)) next.push_back(items[i]);
    for (std::size_t i = 0; i < next.size(); ++i) {
      next[i].length += static_cast<std::int32_t>(1 + random() % 6);
      next[i].index = i;
    }
    items = next;
  }
}

void the_widest_ranges_have_room() {
  constexpr std::int32_t largest = std::numeric_limits<std::int32_t>::max();
  RowOrder order;
  std::vector<Item> items;
  for (std::size_t i = 0; i < 20; ++i) items.push_back({i % 3 == 0 ? largest : 5, i % 4 == 0 ? largest : 1, i});
  check(order, items);
}

}  // namespace

int main() {
  any_lengths_are_ordered();
  a_batch_that_grows_a_little_stays_in_order();
  the_widest_ranges_have_room();
}
