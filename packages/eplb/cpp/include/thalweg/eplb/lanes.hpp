#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace thalweg::eplb {

// Rows of floats are worked on in lanes of a fixed number, on every processor: a sum has the same order, and so the
// same last bit, whether the machine adds four, eight or sixteen at a time.
inline constexpr std::size_t lane_count = 8;
using Lanes = float __attribute__((vector_size(4 * lane_count), aligned(4), may_alias));
using IntLanes = std::int32_t __attribute__((vector_size(4 * lane_count), aligned(4), may_alias));

// Compile a function for the vector units of newer x86 processors too; which one runs is decided when it is loaded,
// before the thread sanitizer is ready to watch a decision.
#if defined(__x86_64__) && defined(__gnu_linux__) && defined(__GNUC__) && !defined(__clang__) && \
    !defined(__SANITIZE_THREAD__)
#define THALWEG_EACH_PROCESSOR __attribute__((target_clones("avx2", "default")))
#else
#define THALWEG_EACH_PROCESSOR
#endif
#define THALWEG_INLINE inline __attribute__((always_inline))

THALWEG_INLINE const Lanes& lanes(const float* row) { return *reinterpret_cast<const Lanes*>(row); }
THALWEG_INLINE Lanes& lanes(float* row) { return *reinterpret_cast<Lanes*>(row); }

// Rows are this many floats long, the ones after the last step 0. Two registers at a time, which hides the latency.
inline constexpr std::size_t row_multiple = 2 * lane_count;
inline std::size_t padded_length(std::size_t steps) { return (steps + row_multiple - 1) / row_multiple * row_multiple; }

THALWEG_INLINE float sum_of(const Lanes& value) {
  const float low = (value[0] + value[4]) + (value[1] + value[5]);
  const float high = (value[2] + value[6]) + (value[3] + value[7]);
  return low + high;
}

}  // namespace thalweg::eplb
