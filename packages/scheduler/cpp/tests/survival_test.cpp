#include "thalweg/scheduler/survival.hpp"

#include <array>
#include <vector>

#include "check.hpp"

using namespace thalweg::scheduler;

namespace {

const std::vector<float> latest{0.5F, 0.25F};
const std::vector<float> previous{1.0F, 0.125F};

void check_rounds() {
  DraftRounds drafts{.num_drafts = 2, .schedule_count = 4, .process_count = 4, .latest = latest, .previous = previous};
  CHECK(rounds_for_step(drafts).budget.data() == previous.data());
  CHECK(rounds_for_step(drafts).split.data() == latest.data());
  drafts.schedule_count = 5;
  CHECK(rounds_for_step(drafts).budget.data() == latest.data());
  CHECK(rounds_for_step(drafts).split.data() == latest.data());
}

void check_unknown_rounds() {
  DraftRounds drafts{.num_drafts = 2, .schedule_count = 1, .process_count = 1};
  CHECK(rounds_for_step(drafts).budget.empty());
  CHECK(rounds_for_step(drafts).unknown == 0.0F);
  drafts.has_draft_info = true;
  CHECK(rounds_for_step(drafts).unknown == 1.0F);
  drafts = {.num_drafts = 2, .schedule_count = 2, .process_count = 1};
  CHECK(rounds_for_step(drafts).unknown == 1.0F);
}

void check_errors() {
  const auto counts = [](std::uint32_t scheduled, std::uint32_t processed) {
    return [=] { rounds_for_step({.num_drafts = 0, .schedule_count = scheduled, .process_count = processed}); };
  };
  check_throws<InvariantError>(counts(4, 2), "schedule_count is 4 and process_count is 2");
  check_throws<InvariantError>(counts(2, 3), "schedule_count is 2 and process_count is 3");
  const auto three_drafts = [](std::span<const float> last, std::span<const float> before) {
    return [=] { rounds_for_step({.num_drafts = 3, .latest = last, .previous = before}); };
  };
  check_throws<InvariantError>(three_drafts(latest, {}), "survival of 2 drafts");
  check_throws<InvariantError>(three_drafts({}, previous), "survival of 2 drafts");
}

void check_products() {
  std::array<float, 3> survival{};
  write_survival(std::vector<float>{0.9F, 0.8F, 0.7F}, 0.0F, survival);
  CHECK(survival[0] == 0.9F);
  CHECK(survival[1] == 0.9F * 0.8F);
  CHECK(survival[2] == 0.9F * 0.8F * 0.7F);
  write_survival({}, 1.0F, survival);
  CHECK((survival == std::array{1.0F, 1.0F, 1.0F}));
}

}  // namespace

int main() {
  check_rounds();
  check_unknown_rounds();
  check_errors();
  check_products();
}
