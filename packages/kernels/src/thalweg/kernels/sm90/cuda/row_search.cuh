// How much of the order of a row the filters keep, found by the blocks of a cluster that hold the row in shared memory.
//
// Order: larger value first, lower column first among equal ones. A histogram tells nearly where the kept prefix ends; a
// window around that is examined. Where the end turns out to lie elsewhere, or where too many values lie in the window,
// what is left is looked at again in the same way, in ranges of the integers that order values; at last a range holds a
// single value. All blocks of a cluster decide by the same numbers, and so in the same way.
#pragma once
#include "row_windows.cuh"

namespace thalweg {

template <int THREADS, int CLUSTER>
struct Search : Windows<THREADS, CLUSTER> {
  using Base = Windows<THREADS, CLUSTER>;
  using Team = typename Base::Team;
  using Verdict = typename Base::Verdict;
  using Counting = Histogram<THREADS, CLUSTER>;
  using Ranges = typename Counting::Ranges;
  using Base::above, Base::BINS, Base::examine, Base::exponential, Base::filters, Base::goes_on, Base::has_limit;
  using Base::in_shares, Base::limit, Base::NONE, Base::s, Base::slice, Base::unit, Base::Windows;
  static constexpr u32 MARGIN = 128;  // ranks on both sides of where the end probably is

  // Bins must be clear, and the clearing seen by all threads of the block.
  __device__ __forceinline__ Bound find() {
    if (filters.top_p >= 1 && !filters.top_k) return keep_from_least();
    Ranges ranges = whole_row();
    u32 above_count = 0, universe = 0;
    double above_share = 0;
    int misses = 0;  // windows in which the end was not
#pragma unroll 1
    for (int level = 0;; ++level) {
      if (level > 0) {
        Team::meet();
        Counting::clear(s.bins);
        __syncthreads();
        ranges.is_linear = false;
      }
      u32 in_ranges;
      const Window window = look(ranges, level < 3 ? MARGIN : 0, misses > 1, above_count, above_share, in_ranges);
      if (level == 0) universe = in_ranges;
      if (in_ranges == 0) return {-INFINITY, NONE, NONE, 0};  // NaN alone
      const u32 before = above_count + window.above_count, through = before + window.count;
      Verdict verdict;
      if (!examine(window, before, verdict)) {
        ranges.low = window.low;
        ranges.high = window.high;
        above_count = before;
        above_share += window.above_share;
        continue;
      }
      ++misses;
      if (verdict.kept == 0) {  // it ends above
        ranges.low = window.high + 1;
      } else if (verdict.kept == window.count && through < universe && goes_on(above + verdict.window_mass, through)) {
        ranges.high = window.low - 1;  // it ends below
        above_count = through;
        above_share = in_shares(above + verdict.window_mass);
      } else {
        return {verdict.last, verdict.kept_ties, verdict.ties, above + verdict.kept_mass};
      }
    }
  }

  // End of the columns of this block in which `last` is kept, where not all columns that have it are.
  __device__ __forceinline__ int end_of_ties(const Bound& bound, int block_rank) {
    const int per = (slice.count + THREADS - 1) / THREADS, from = min(static_cast<int>(threadIdx.x) * per, slice.count);
    const int to = min(from + per, slice.count);
    u32 own = 0, all = 0, lower = 0;
    for (int i = from; i < to; ++i) own += slice.at(i) == bound.last;
    const u32 before = Team::before(own, s.slots32, all);
    if (threadIdx.x == 0) s.num_ties = all;
    Team::meet();
    for (int rank = 0; rank < block_rank; ++rank) lower += *Team::of(&s.num_ties, rank);
    const u32 quota = bound.kept_ties > lower ? bound.kept_ties - lower : 0;
    if (threadIdx.x == 0) s.tie_end = quota == 0 ? 0 : slice.count;
    __syncthreads();
    if (quota > before && quota <= before + own) {
      u32 seen = before;
      for (int i = from; i < to; ++i)
        if (slice.at(i) == bound.last && ++seen == quota) s.tie_end = i + 1;
    }
    __syncthreads();
    return s.tie_end;
  }

 private:
  __device__ __forceinline__ Ranges whole_row() const {
    const float largest = exponential.largest;
    const bool is_finite = fabsf(largest) < INFINITY;
    // A token behind the last linear range has no mass.
    const float slope = (BINS - 1) / (0.6931472f * (unit + 1) + 0.01f);
    return {key_of(is_finite ? filters.least : -INFINITY), key_of(is_finite ? largest : INFINITY), 0, is_finite, largest,
            slope};
  }

  // With min-p alone.
  __device__ __forceinline__ Bound keep_from_least() {
    double kept = 0;  // of whole numbers, exact in any order
    slice.template each<THREADS>([&](int, float t) {
      if (t >= filters.least) kept += exponential.mass(t, unit);
    });
    Team::put(kept, s.above, Sum());
    Team::meet();
    return {filters.least, NONE, NONE, static_cast<u64>(Team::gathered(s.above, 0.0, Sum()))};
  }

  // A window around the end of the prefix, if that lies in the ranges. halves: take the middle instead of what top-p says.
  __device__ __forceinline__ Window look(Ranges& ranges, u32 margin, bool halves, u32 above_count, double above_share,
                                         u32& in_ranges) {
    ranges.divide();
    Counting::count(s.bins, slice, ranges, filters.least);
    if (threadIdx.x == 0) s.listed = 0;
    Team::meet();
    const auto counts = Counting::gather(s.histogram, s.bins, ranges);
    in_ranges = counts.total;
    u32 rank = in_ranges - 1;
    if (filters.top_p < 1) {
      const double end = has_limit ? in_shares(limit) : filters.top_p * counts.total_share;
      const u32 by_mass = Counting::rank_of(s.histogram, counts, ranges, end - above_share);
      rank = halves ? rank / 2 : min(rank, by_mass);
    }
    if (filters.top_k > above_count) rank = min(rank, filters.top_k - above_count - 1);
    return Counting::window(s.histogram, counts, ranges, rank > margin ? rank - margin : 0,
                            min(rank + margin, in_ranges - 1));
  }
};

}  // namespace thalweg
