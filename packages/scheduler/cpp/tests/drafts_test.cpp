#include <array>
#include <vector>

#include "check.hpp"
#include "thalweg/scheduler/draft_slots.hpp"
#include "thalweg/scheduler/draft_table.hpp"

using namespace thalweg::scheduler;

namespace {

void the_slot_given_back_last_comes_first() {
  DraftSlots slots(3);
  std::int32_t first = slots.take();
  std::int32_t second = slots.take();
  CHECK(first == 1 && second == 2 && slots.num_in_use() == 2);
  slots.release(second);
  CHECK(second == 0);
  slots.release(second);  // none: nothing happens
  slots.release(first);
  CHECK((slots.free_ids() == std::vector<std::int32_t>{1, 2, 3}));
  for (int i = 0; i < 3; ++i) slots.take();
  check_throws<InvariantError>([&] { slots.take(); }, "all 3 draft slots are taken");
}

void drafts_of_any_length_are_kept_by_slot() {
  for (std::int32_t length = 1; length <= 20; ++length) {
    DraftTable table(2, length);
    std::vector<std::int32_t> tokens(table.length());
    std::vector<float> confidences(table.length());
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      tokens[i] = static_cast<std::int32_t>(i);
      confidences[i] = static_cast<float>(i) / 32;
    }
    table.set_padding(1, 999);
    table.set(2, tokens.data(), confidences.data());
    CHECK(table.tokens(1).front() == 999 && table.tokens(1).back() == 999 && table.confidences(1).empty());
    CHECK(std::equal(tokens.begin(), tokens.end(), table.tokens(2).begin()));
    CHECK(std::equal(confidences.begin(), confidences.end(), table.confidences(2).begin()));
    table.set(2, tokens.data(), nullptr);
    CHECK(table.confidences(2).empty());
  }
}

}  // namespace

int main() {
  the_slot_given_back_last_comes_first();
  drafts_of_any_length_are_kept_by_slot();
}
