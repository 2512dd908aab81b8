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

// One layer of a history [steps, layers, experts], consecutive steps summed into equally long buckets (the last may be
// shorter) if there are more than most_buckets: [buckets, experts]. Small forecasts and counts that float does not hold to
// the last token are scaled by a power of two to sums just below 2^24. Throws std::invalid_argument if the tokens of a
// bucket have no finite sum.
template <class Count>
std::vector<float> bucket_steps(const Count* history, std::size_t num_steps, std::size_t num_layers,
                                std::size_t num_experts, std::size_t layer) {
  const std::size_t in_bucket = (num_steps + most_buckets - 1) / most_buckets;
  const std::size_t num_buckets = (num_steps + in_bucket - 1) / in_bucket;
  std::vector<double> sums(num_buckets * num_experts, 0.0);
  for (std::size_t step = 0; step < num_steps; ++step) {
    const Count* row = history + (step * num_layers + layer) * num_experts;
    double* bucket = sums.data() + step / in_bucket * num_experts;
    for (std::size_t e = 0; e < num_experts; ++e) bucket[e] += static_cast<double>(row[e]);
  }
  double largest = 0.0;
  for (std::size_t bucket = 0; bucket < num_buckets; ++bucket) {
    double total = 0.0;
    for (std::size_t e = 0; e < num_experts; ++e) total += sums[bucket * num_experts + e];
    if (!std::isfinite(total))
      throw std::invalid_argument("the tokens of layer " + std::to_string(layer) + " have the sum " +
                                  std::to_string(total) + " over steps; it must be finite");
    largest = std::max(largest, total);
  }
  const bool is_usual = largest == 0.0 || (largest >= 1.0 && largest < 0x1p24);
  const double scale = is_usual ? 1.0 : std::ldexp(1.0, std::clamp(23 - std::ilogb(largest), -1000, 1000));
  std::vector<float> scaled(sums.size());
  for (std::size_t at = 0; at < sums.size(); ++at) scaled[at] = static_cast<float>(sums[at] * scale);
  return scaled;
}

}  // namespace thalweg::eplb
