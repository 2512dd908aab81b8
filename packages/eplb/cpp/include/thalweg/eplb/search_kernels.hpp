#pragma once

#include <cstddef>
#include <cstdint>

namespace thalweg::eplb {

// The loops over the steps of one row that take the time of a search. Every row has `length` floats, a multiple of
// row_multiple; rows of ranks follow each other.

// The exponent of the smooth peak of a step: (sum over ranks of load^32)^(1/32).
inline constexpr int smooth_power = 32;

// to += row.
void add_row(float* to, const float* row, std::size_t length);
// to = max(to, row).
void raise_row(float* to, const float* row, std::size_t length);

// Sum over steps of what load + share is above the peak; of some steps only if those are `enough`.
float rise_with(const float* peak, const float* load, const float* share, std::size_t length, float enough);

// What a swap does to the objective: rank i gives share a to rank j for share b. The rows of a rank are its load in
// parts of the step's peak, and the 32nd power of that; inverse_peak and weight belong to the steps.
struct RankRows {
  float* load;
  float* power;
};
struct StepRows {
  const float* inverse_peak;
  const float* weight;
};
float swap_change(const RankRows& i, const RankRows& j, const float* a, const float* b, const StepRows& steps,
                  std::size_t length);
// Do that swap: the ranks' rows, the sums of powers of the steps and their weights = peak / (32 * sum). Returns the
// least sum of powers of the first num_steps steps.
float apply_swap(const RankRows& i, const RankRows& j, const float* a, const float* b, const float* inverse_peak,
                 const float* peak, float* power_sum, float* weight, std::size_t length, std::size_t num_steps);

// From loads in tokens: load *= inverse_peak and power = load^32 of one rank, added to power_sum.
void normalise_rank(const RankRows& rank, const float* inverse_peak, float* power_sum, std::size_t length);
// weight = peak / (32 * power_sum), 0 where a step has no tokens.
void weigh_steps(const float* peak, const float* power_sum, float* weight, std::size_t length);

// to = left * right, and to = row * by * scale.
void multiply_rows(const float* left, const float* right, float* to, std::size_t length);
void scale_row(const float* row, const float* by, float scale, float* to, std::size_t length);

// Where the largest and the least number are, the first of equal ones. The length is a multiple of lane_count.
std::size_t largest_place(const float* row, std::size_t length);
std::size_t least_place(const float* row, std::size_t length);

// What a slot of rank i meets in one step of each rank j: the tokens of j's copies [ranks, width], in parts of the
// step's peak; of the copy given away, the load of i, the load of j, their 32nd powers, and the weight of the step
// [ranks].
struct ScreenRows {
  const float* share;
  const float* given;
  const float* load_i;
  const float* power_i;
  const float* load_j;
  const float* power_j;
  const float* weight;
};
// The change of the objective for each slot that rank i could take in exchange, over these steps alone: [ranks, width].
void screen_swaps(const ScreenRows* views, std::size_t num_views, std::size_t ranks, std::size_t width, float* score);

}  // namespace thalweg::eplb
