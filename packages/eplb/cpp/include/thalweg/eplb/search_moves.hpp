#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "thalweg/eplb/search_problem.hpp"

namespace thalweg::eplb {

// How many experts have to be moved for a placement: copies that ranks hold now and did not hold in origin.
class Moves {
 public:
  Moves(const SearchProblem& problem, const Slots& slots, const Slots& origin)
      : num_experts_(problem.num_experts), surplus_(problem.num_ranks * problem.num_experts, 0) {
    for (std::size_t slot = 0; slot < problem.num_slots; ++slot) {
      ++surplus(slot / problem.slots_per_rank, slots[slot]);
      --surplus(slot / problem.slots_per_rank, origin[slot]);
    }
  }

  std::int64_t count() const {
    std::int64_t sum = 0;
    for (const std::int32_t of_rank : surplus_) sum += std::max(of_rank, 0);
    return sum;
  }
  // Change of `count` if rank i gave expert a to rank j for expert b.
  int change(std::size_t i, std::size_t j, std::int32_t a, std::int32_t b) {
    return (surplus(i, b) >= 0) - (surplus(i, a) > 0) + (surplus(j, a) >= 0) - (surplus(j, b) > 0);
  }
  void apply(std::size_t i, std::size_t j, std::int32_t a, std::int32_t b) {
    --surplus(i, a), ++surplus(i, b);
    --surplus(j, b), ++surplus(j, a);
  }

 private:
  std::int32_t& surplus(std::size_t rank, std::int32_t expert) {
    return surplus_[rank * num_experts_ + static_cast<std::size_t>(expert)];
  }

  std::size_t num_experts_;
  std::vector<std::int32_t> surplus_;  // [num_ranks, num_experts] copies now less those in origin
};

}  // namespace thalweg::eplb
