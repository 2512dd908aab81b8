#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <stdexcept>
#include <string>
#include <vector>

namespace thalweg::eplb {

// More steps than this cost time and bring nothing; fewer than 60 lose what happens together.
inline constexpr std::size_t most_buckets = 250;

inline constexpr std::size_t rows_ahead = 2;
inline constexpr std::size_t bytes_of_line = 64;

// One layer of a history [steps, layers, experts].
template <class Count>
struct LayerHistory {
  // Consecutive steps summed into equally long buckets (the last may be shorter), times a factor: [buckets, experts].
  // Returns the most tokens in a bucket.
  double sum_into(std::vector<float>& buckets, double factor) const {
    const std::size_t in_bucket = (num_steps + most_buckets - 1) / most_buckets;
    double largest = 0.0;
    std::vector<double> sums(num_experts);
    buckets.clear();
    buckets.reserve((num_steps + in_bucket - 1) / in_bucket * num_experts);
    for (std::size_t first = 0; first < num_steps; first += in_bucket) {
      std::fill(sums.begin(), sums.end(), 0.0);
      for (std::size_t step = first; step < std::min(first + in_bucket, num_steps); ++step) {
        const Count* row = counts + (step * num_layers + layer) * num_experts;
        if (step + rows_ahead < num_steps) prefetch(row + rows_ahead * num_layers * num_experts);
        for (std::size_t e = 0; e < num_experts; ++e) sums[e] += static_cast<double>(row[e]);
      }
      double total = 0.0;
      for (const double of_expert : sums) {
        total += of_expert;
        buckets.push_back(static_cast<float>(of_expert * factor));
      }
      if (!std::isfinite(total))
        throw std::invalid_argument("the tokens of layer " + std::to_string(layer) + " have the sum " +
                                    std::to_string(total) + " over steps; it must be finite");
      largest = std::max(largest, total);
    }
    return largest;
  }

  // The rows of a layer lie far apart, so the processor does not foresee the next one.
  void prefetch(const Count* row) const {
    for (std::size_t e = 0; e < num_experts; e += bytes_of_line / sizeof(Count)) __builtin_prefetch(row + e);
  }

  const Count* counts;
  std::size_t num_steps, num_layers, num_experts, layer;
};

// The buckets of a layer. Small forecasts and counts that float does not hold to the last token are scaled by a power
// of two to sums just below 2^24. Throws std::invalid_argument if the tokens of a bucket have no finite sum.
template <class Count>
std::vector<float> bucket_steps(const LayerHistory<Count>& history) {
  std::vector<float> buckets;
  const double largest = history.sum_into(buckets, 1.0);
  const bool is_usual = largest == 0.0 || (largest >= 1.0 && largest < 0x1p24);
  if (!is_usual) history.sum_into(buckets, std::ldexp(1.0, std::clamp(23 - std::ilogb(largest), -1000, 1000)));
  return buckets;
}

}  // namespace thalweg::eplb
