#include "thalweg/eplb/search_exchanges.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <utility>

#include "thalweg/eplb/search_random.hpp"

namespace thalweg::eplb {
namespace {

// At first, how much worse a change may make it, in parts of the mean rank load: which is best differs between layers.
constexpr std::array temperatures{1e-2, 1e-1, 3e-3};
constexpr int most_rounds = 9;
// Changes tried in a round, and additions made for them: each change sums up the loads of all slots.
constexpr std::size_t most_changes = 20'000;
constexpr std::size_t most_additions = std::size_t{1} << 25;

class Exchanges {
 public:
  Exchanges(const SearchProblem& problem, const Scored& start, std::uint64_t seed)
      : problem_(problem),
        now_(start),
        best_(start),
        copies_(count_copies(problem, start.slots)),
        shares_(shares_of(problem, copies_)),
        generator_(seed) {}

  const Scored& best() const { return best_; }

  void anneal(double temperature, double enough) {
    const std::size_t changes = std::min(most_changes, most_additions / (problem_.num_slots * problem_.length));
    for (std::size_t done = 0; done < changes && best_.peak_sum > enough; ++done) {
      const double left = 1.0 - static_cast<double>(done) / static_cast<double>(changes);
      temperature_ = temperature * left * left;
      const std::size_t slot = generator_.below(problem_.num_slots);
      if (generator_.below(2) == 0)
        try_swap(slot, generator_.below(problem_.num_slots));
      else
        try_other_expert(slot, static_cast<std::int32_t>(generator_.below(problem_.num_experts)));
    }
  }

 private:
  void try_swap(std::size_t slot, std::size_t other) {
    if (slot / problem_.slots_per_rank == other / problem_.slots_per_rank) return;
    if (!has_room_for(now_.slots[other], slot) || !has_room_for(now_.slots[slot], other)) return;
    std::swap(now_.slots[slot], now_.slots[other]);
    if (!keep()) std::swap(now_.slots[slot], now_.slots[other]);
  }

  void try_other_expert(std::size_t slot, std::int32_t expert) {
    const std::int32_t before = now_.slots[slot];
    if (expert == before || copies_[static_cast<std::size_t>(before)] == 1 || !has_room_for(expert, slot)) return;
    hold(slot, expert);
    if (!keep()) hold(slot, before);
  }

  bool keep() {
    const double sum = peak_sum(problem_, shares_, now_.slots);
    if (sum > now_.peak_sum + temperature_ * static_cast<double>(generator_.exponential())) return false;
    now_.peak_sum = sum;
    if (sum < best_.peak_sum) best_ = now_;
    return true;
  }

  bool has_room_for(std::int32_t expert, std::size_t slot) const {
    const auto first = now_.slots.begin() + static_cast<std::ptrdiff_t>(slot - slot % problem_.slots_per_rank);
    const auto copies = std::count(first, first + static_cast<std::ptrdiff_t>(problem_.slots_per_rank), expert);
    return static_cast<std::size_t>(copies) < problem_.copies_on_rank;
  }

  void hold(std::size_t slot, std::int32_t expert) {
    const std::int32_t before = std::exchange(now_.slots[slot], expert);
    change_copies(static_cast<std::size_t>(before), -1);
    change_copies(static_cast<std::size_t>(expert), 1);
  }

  void change_copies(std::size_t expert, std::int32_t more_copies) {
    copies_[expert] += more_copies;
    share_out(problem_, expert, copies_[expert], shares_);
  }

  const SearchProblem& problem_;
  Scored now_;
  Scored best_;
  Copies copies_;
  Shares shares_;
  Generator generator_;
  double temperature_ = 0.0;
};

}  // namespace

Scored exchanged(const SearchProblem& problem, const Scored& start, const ExchangeSearch& how) {
  Scored best = start;
  for (std::size_t round = 0; round < most_rounds && best.peak_sum > how.enough; ++round) {
    Exchanges exchanges(problem, best, how.seed + round);
    exchanges.anneal(temperatures[round % temperatures.size()] * how.mean_load, how.enough);
    best = exchanges.best();
  }
  return best;
}

}  // namespace thalweg::eplb
