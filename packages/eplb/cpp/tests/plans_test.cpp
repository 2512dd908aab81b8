// Placements of every shape, the extreme ones too: for the sanitizers of memory.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "check.hpp"
#include "thalweg/eplb/reference.hpp"
#include "thalweg/eplb/search.hpp"
#include "thalweg/eplb/search_history.hpp"
#include "traffic.hpp"

using namespace thalweg::eplb;

namespace {

struct Shape {
  std::size_t steps, experts, slots, ranks;
};

const std::vector<Shape> shapes = {
    {1, 1, 1, 1}, {1, 1, 4, 4}, {3, 2, 6, 2},   {7, 5, 8, 8},     {20, 8, 8, 4},
    {33, 16, 20, 4}, {60, 13, 24, 3}, {9, 3, 32, 2}, {601, 31, 40, 8}, {64, 64, 72, 8},
};

SearchProblem problem_of(const Shape& shape, const std::vector<std::int32_t>& counts) {
  const LayerHistory<std::int32_t> history{counts.data(), shape.steps, 1, shape.experts, 0};
  return SearchProblem(bucket_steps(history), shape.experts, shape.slots, shape.ranks);
}

bool holds_every_expert(const Shape& shape, const Slots& slots) {
  if (slots.size() != shape.slots) return false;
  for (std::size_t expert = 0; expert < shape.experts; ++expert)
    if (std::find(slots.begin(), slots.end(), static_cast<std::int32_t>(expert)) == slots.end()) return false;
  return std::all_of(slots.begin(), slots.end(), [&](std::int32_t expert) {
    return expert >= 0 && static_cast<std::size_t>(expert) < shape.experts;
  });
}

double peaks_of(const SearchProblem& problem, const Slots& slots) {
  return peak_sum(problem, shares_of(problem, count_copies(problem, slots)), slots);
}

void the_reference_holds_every_expert_and_uses_every_slot_once() {
  for (const Shape& shape : shapes) {
    const std::vector<float> counts = skewed_traffic<float>(shape.steps, shape.experts, 1);
    const Counts view{counts.data(), shape.steps, shape.experts};
    const std::vector<std::int32_t> experts = replicate_by_peak(view, shape.slots);
    CHECK(holds_every_expert(shape, experts));
    std::vector<std::int32_t> slots = pack_by_peak(view, experts, shape.ranks);
    std::sort(slots.begin(), slots.end());
    for (std::size_t slot = 0; slot < shape.slots; ++slot) CHECK(slots[slot] == static_cast<std::int32_t>(slot));
  }
}

void a_search_holds_every_expert_and_ends_no_worse_than_it_began() {
  for (const Shape& shape : shapes) {
    const SearchProblem problem = problem_of(shape, skewed_traffic<std::int32_t>(shape.steps, shape.experts, 2));
    const SearchOptions options{.proposals = 300, .seed = 3};
    const Slots fresh = search(problem, std::nullopt, options);
    CHECK(holds_every_expert(shape, fresh));
    CHECK(fresh == search(problem, std::nullopt, options));
    Slots current;
    for (std::size_t slot = 0; slot < shape.slots; ++slot)
      current.push_back(static_cast<std::int32_t>(slot % shape.experts));
    const Slots improved = search(problem, current, options);
    CHECK(holds_every_expert(shape, improved));
    CHECK(peaks_of(problem, improved) <= peaks_of(problem, current));
  }
}

void traffic_without_tokens_has_a_plan() {
  for (const Shape& shape : shapes) {
    const SearchProblem problem = problem_of(shape, std::vector<std::int32_t>(shape.steps * shape.experts));
    CHECK(holds_every_expert(shape, search(problem, std::nullopt, {.proposals = 100})));
  }
}

}  // namespace

int main() {
  the_reference_holds_every_expert_and_uses_every_slot_once();
  a_search_holds_every_expert_and_ends_no_worse_than_it_began();
  traffic_without_tokens_has_a_plan();
}
