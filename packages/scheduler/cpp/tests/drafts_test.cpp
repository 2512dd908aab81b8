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
    table.at(1).set_padding(999);
    table.at(2).set(tokens.data(), confidences.data());
    CHECK(table.at(1).tokens().front() == 999 && table.at(1).tokens().back() == 999);
    CHECK(table.at(1).confidences().empty() && table.at(1).previous_confidences().empty());
    CHECK(std::equal(tokens.begin(), tokens.end(), table.at(2).tokens().begin()));
    CHECK(std::equal(confidences.begin(), confidences.end(), table.at(2).confidences().begin()));
    table.at(2).set(tokens.data(), nullptr);
    CHECK(table.at(2).confidences().empty());
  }
}

void the_confidences_of_two_rounds_are_kept() {
  DraftTable table(1, 2);
  const DraftRecord record = table.at(1);
  const std::vector<std::int32_t> tokens{7, 8};
  const auto round = [&](float first) {
    const std::vector<float> confidences{first, first / 2};
    record.set(tokens.data(), confidences.data());
  };
  const auto starts_with = [](std::span<const float> confidences, float first) {
    return confidences.size() == 2 && confidences[0] == first && confidences[1] == first / 2;
  };
  record.set_padding(9);
  round(0.5f);
  CHECK(starts_with(record.confidences(), 0.5f) && record.previous_confidences().empty());
  round(0.25f);
  CHECK(starts_with(record.confidences(), 0.25f) && starts_with(record.previous_confidences(), 0.5f));
  record.set(tokens.data(), nullptr);
  CHECK(record.confidences().empty() && starts_with(record.previous_confidences(), 0.25f));
  round(1.0f);
  CHECK(starts_with(record.confidences(), 1.0f) && record.previous_confidences().empty());
  record.set_padding(9);
  CHECK(record.confidences().empty() && record.previous_confidences().empty());
}

}  // namespace

int main() {
  the_slot_given_back_last_comes_first();
  drafts_of_any_length_are_kept_by_slot();
  the_confidences_of_two_rounds_are_kept();
}
