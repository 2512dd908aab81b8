#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace thalweg::eplb {

// Counts of one layer, row-major [steps, experts].
struct Counts {
  const float* data;
  std::size_t steps;
  std::size_t experts;

  const float* step(std::size_t index) const { return data + index * experts; }
};

// Which expert each of `slots` copies is of: all experts in order, then each redundant copy in the order it was given.
//
// A copy goes to the expert for which the sum over steps of the peak load of a copy falls most.
std::vector<std::int32_t> replicate_by_peak(const Counts& counts, std::size_t slots);

// The slot of each copy: heaviest first, each to the rank with room where the sum over steps of the peak rank load
// grows least. With one slot per rank a copy keeps its index.
std::vector<std::int32_t> pack_by_peak(const Counts& counts, const std::vector<std::int32_t>& experts,
                                       std::size_t ranks);

}  // namespace thalweg::eplb
