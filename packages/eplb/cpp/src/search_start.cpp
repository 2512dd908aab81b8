#include "thalweg/eplb/search_start.hpp"

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

#include "thalweg/eplb/search_kernels.hpp"

namespace thalweg::eplb {
namespace {

constexpr std::int32_t vacant = -1;

// A placement being filled: the loads of its ranks, and what they hold.
class Filling {
 public:
  Filling(const SearchProblem& problem, const Shares& shares, Slots slots)
      : problem_(problem),
        slots_(std::move(slots)),
        shares_(shares),
        loads_(problem.num_ranks * problem.length, 0.0F),
        peak_(problem.length, 0.0F),
        room_(problem.num_ranks, 0),
        held_(problem.num_ranks * problem.num_experts, 0) {
    for (std::size_t slot = 0; slot < problem.num_slots; ++slot) {
      if (slots_[slot] == vacant)
        ++room_[rank_of(slot)];
      else
        hold(rank_of(slot), static_cast<std::size_t>(slots_[slot]));
    }
  }

  // Put a copy of an expert on the best rank with room; false if every such rank holds enough of them.
  bool place(std::size_t expert) {
    std::size_t best = problem_.num_ranks;
    float least_rise = std::numeric_limits<float>::infinity();
    bool has_seen_empty = false;
    for (std::size_t rank = 0; rank < problem_.num_ranks && least_rise > 0.0F; ++rank) {
      if (room_[rank] == 0 || held_[rank * problem_.num_experts + expert] >= problem_.copies_on_rank) continue;
      const bool is_empty = room_[rank] == problem_.slots_per_rank;
      if (is_empty && std::exchange(has_seen_empty, true)) continue;
      const float rise = rise_with(peak_.data(), load(rank), share(expert), problem_.length, least_rise);
      if (rise < least_rise) {
        best = rank;
        least_rise = rise;
      }
    }
    if (best == problem_.num_ranks) return false;
    const auto first = slots_.begin() + static_cast<std::ptrdiff_t>(best * problem_.slots_per_rank);
    *std::find(first, first + static_cast<std::ptrdiff_t>(problem_.slots_per_rank), vacant) =
        static_cast<std::int32_t>(expert);
    --room_[best];
    hold(best, expert);
    return true;
  }

  const float* share(std::size_t expert) const { return shares_.data() + expert * problem_.length; }
  Slots take() { return std::move(slots_); }

 private:
  std::size_t rank_of(std::size_t slot) const { return slot / problem_.slots_per_rank; }
  float* load(std::size_t rank) { return loads_.data() + rank * problem_.length; }
  void hold(std::size_t rank, std::size_t expert) {
    ++held_[rank * problem_.num_experts + expert];
    add_row(load(rank), share(expert), problem_.length);
    raise_row(peak_.data(), load(rank), problem_.length);
  }

  const SearchProblem& problem_;
  Slots slots_;
  const Shares& shares_;
  std::vector<float> loads_;
  std::vector<float> peak_;
  std::vector<std::size_t> room_;
  std::vector<std::size_t> held_;
};

// Tokens of one copy of each expert, over all steps.
std::vector<double> tokens_per_copy(const SearchProblem& problem, const Copies& copies) {
  std::vector<double> tokens = problem.expert_total;
  for (std::size_t e = 0; e < problem.num_experts; ++e) tokens[e] /= copies[e];
  return tokens;
}

// The experts of these copies, those with the most tokens per copy first.
std::vector<std::size_t> heaviest_first(const SearchProblem& problem, const Copies& copies) {
  const std::vector<double> weight = tokens_per_copy(problem, copies);
  std::vector<std::size_t> order(problem.num_experts);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return weight[a] > weight[b]; });
  return order;
}

// Copies dealt out to the ranks in turn, the copies of an expert one after the other: always possible.
Slots dealt(const SearchProblem& problem, const Copies& copies) {
  Slots slots(problem.num_slots);
  std::size_t place = 0;
  for (std::size_t e = 0; e < problem.num_experts; ++e)
    for (std::int32_t copy = 0; copy < copies[e]; ++copy, ++place)
      slots[place % problem.num_ranks * problem.slots_per_rank + place / problem.num_ranks] =
          static_cast<std::int32_t>(e);
  return slots;
}

// Empty the slots of copies that are too many: on their rank, or altogether, then on the most loaded ranks.
void vacate(const SearchProblem& problem, const Copies& copies, Slots& slots) {
  const std::vector<double> of_expert = tokens_per_copy(problem, count_copies(problem, slots));
  std::vector<double> of_rank(problem.num_ranks, 0.0);
  std::vector<std::vector<std::size_t>> held(problem.num_experts);
  for (std::size_t slot = 0; slot < problem.num_slots; ++slot) {
    const auto expert = static_cast<std::size_t>(slots[slot]);
    const std::size_t rank = slot / problem.slots_per_rank;
    of_rank[rank] += of_expert[expert];
    const auto is_here = [&](std::size_t other) { return other / problem.slots_per_rank == rank; };
    if (static_cast<std::size_t>(std::count_if(held[expert].begin(), held[expert].end(), is_here)) <
        problem.copies_on_rank)
      held[expert].push_back(slot);
    else
      slots[slot] = vacant;
  }
  for (std::size_t e = 0; e < problem.num_experts; ++e)
    while (held[e].size() > static_cast<std::size_t>(copies[e])) {
      const auto fullest = std::max_element(held[e].begin(), held[e].end(), [&](std::size_t a, std::size_t b) {
        return of_rank[a / problem.slots_per_rank] < of_rank[b / problem.slots_per_rank];
      });
      of_rank[*fullest / problem.slots_per_rank] -= of_expert[e];
      slots[*fullest] = vacant;
      held[e].erase(fullest);
    }
}

}  // namespace

Slots packed(const SearchProblem& problem, const Copies& copies, const Shares& shares) {
  Filling filling(problem, shares, Slots(problem.num_slots, vacant));
  for (const std::size_t e : heaviest_first(problem, copies))
    for (std::int32_t copy = 0; copy < copies[e]; ++copy)
      if (!filling.place(e)) return dealt(problem, copies);
  return filling.take();
}

std::optional<Slots> adapted(const SearchProblem& problem, const Copies& copies, const Shares& shares,
                             const Slots& current) {
  Slots slots = current;
  vacate(problem, copies, slots);
  Copies missing = copies;
  for (const std::int32_t expert : slots)
    if (expert != vacant) --missing[static_cast<std::size_t>(expert)];
  Filling filling(problem, shares, std::move(slots));
  for (const std::size_t e : heaviest_first(problem, copies))
    for (std::int32_t copy = 0; copy < missing[e]; ++copy)
      if (!filling.place(e)) return std::nullopt;
  return filling.take();
}

}  // namespace thalweg::eplb
