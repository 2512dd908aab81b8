#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

namespace thalweg::eplb {

// Counts of one layer, row-major [steps, experts]: a few experts that change now and then get most of the tokens.
template <class Count>
std::vector<Count> skewed_traffic(std::size_t steps, std::size_t experts, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<Count> counts;
  std::size_t favourite = 0;
  for (std::size_t step = 0; step < steps; ++step) {
    if (step % 5 == 0) favourite = random() % experts;
    for (std::size_t expert = 0; expert < experts; ++expert)
      counts.push_back(static_cast<Count>(random() % 20 + (expert == favourite ? 100 : 0)));
  }
  return counts;
}

}  // namespace thalweg::eplb
