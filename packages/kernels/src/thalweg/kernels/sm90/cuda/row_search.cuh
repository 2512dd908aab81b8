// How much of the order of a row the filters keep, found by the blocks of a cluster that hold the row in shared memory.
//
// Order: larger value first, lower column first among equal ones. A histogram tells nearly where the kept prefix ends;
// a window around that is examined. Where the end turns out to lie elsewhere, or where too many values lie in the
// window, the row is looked at in ranges of the integers that order values, again and again: at last a range holds a
// single value. All blocks of a cluster decide by the same numbers, and so in the same way.
#pragma once
#include "row_windows.cuh"

namespace thalweg {

template <int THREADS, int CLUSTER>
struct Search : Windows<THREADS, CLUSTER> {
  using Base = Windows<THREADS, CLUSTER>;
  using Team = typename Base::Team;
  using Shared = typename Base::Shared;
  using Verdict = typename Base::Verdict;
  using Counting = Histogram<THREADS, CLUSTER>;
  using Base::above, Base::by_mass, Base::columns, Base::exponential, Base::filters, Base::gather_list, Base::goes_on;
  using Base::has_limit, Base::in_shares, Base::judge_equal, Base::judge_list, Base::limit, Base::list, Base::LISTED;
  using Base::NONE;
  using Base::put, Base::rank, Base::s, Base::slack, Base::slice, Base::sort_list, Base::take_sums, Base::unit;
  using Base::weigh, Base::Windows;
  static constexpr int BINS = Counting::BINS;
  static constexpr u32 MARGIN = 32;  // ranks on both sides of where top-p probably ends

  struct Outcome {
    bool is_found;
    Bound bound;
  };

  // Bins must be clear, and the clearing seen by all threads of the block.
  __device__ __forceinline__ Bound find() {
    if (!by_mass() && !filters.top_k) return keep_from_least(s, slice, filters, exponential.largest, columns);
    Outcome outcome = {};
    if (Grid::fits(exponential.largest)) outcome = find_by_values();
    if (!outcome.is_found) outcome.bound = find_by_keys(s, slice, filters, exponential.largest, columns, rank);
    if (filters.least <= outcome.bound.last) return outcome.bound;
    Team::meet();
    return keep_from_least(s, slice, filters, exponential.largest, columns);
  }

  // End of the columns of this block in which `last` is kept, where not all columns that have it are.
  __device__ __forceinline__ int end_of_ties(const Bound& bound) {
    const int per = (slice.count + THREADS - 1) / THREADS, from = min(static_cast<int>(threadIdx.x) * per, slice.count);
    const int to = min(from + per, slice.count);
    u32 own = 0, all = 0, lower = 0;
    for (int i = from; i < to; ++i) own += slice.at(i) == bound.last;
    const u32 before = Team::before(own, s.slots32, all);
    if (threadIdx.x == 0) s.num_ties = all;
    Team::meet();
    for (int other = 0; other < rank; ++other) lower += *Team::of(&s.num_ties, other);
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
  // What min-p alone keeps.
  static __device__ __noinline__ Bound keep_from_least(Shared& s, Slice slice, Filters filters, float largest,
                                                       u32 columns) {
    const Exponential exponential(largest);
    double kept = 0;  // of whole numbers, exact in any order
    slice.each<THREADS>([&](int, float t) {
      if (t >= filters.least) kept += exponential.mass(t, Base::unit_of(columns));
    });
    Team::put(kept, s.above, Sum());
    Team::meet();
    return {filters.least, NONE, NONE, static_cast<u64>(Team::gathered(s.above, 0.0, Sum()))};
  }

  // With a single histogram, which may not find it.
  __device__ __forceinline__ Outcome find_by_values() {
    const Grid grid(exponential.largest);
    Counting::count(s.bins, slice, grid);
    if (threadIdx.x == 0) s.listed = 0;
    Team::meet();
    Counting::add_up(s.bins, rank);
    const auto counts = Counting::look(s.histogram, s.bins, grid);
    u32 end = columns - 1;
    if (by_mass()) end = Counting::rank_of(s.histogram, counts, grid, filters.top_p * counts.total_share);
    if (filters.top_k) end = min(end, filters.top_k - 1);
    const u32 margin = by_mass() ? MARGIN : 0;
    const Window window = Counting::window(s.histogram, counts, grid, end > margin ? end - margin : 0,
                                           min(end + margin, counts.total - 1));
    if (window.last_bin == BINS - 1 || window.count > LISTED) return {};
    const float first = grid.place_of(window.first_bin), last = grid.place_of(window.last_bin);
    const auto is_above = [&](float t) { return grid.clamped_place(t) > first; };
    const auto is_near = [&](float t) { return grid.clamped_place(t) <= first && grid.clamped_place(t) >= last; };
    if (by_mass()) {
      survey(grid, window, first, last);
      slack = columns / 2 + 1;  // from rounding to whole numbers, which survey() does not
    } else {
      weigh(is_above, is_near);
    }
    Team::meet();
    take_sums();
    const u32 listed = gather_list();
    if (listed > LISTED) return {};
    sort_list(listed);
    if (by_mass()) slack += static_cast<u64>(static_cast<double>(limit) / fmax(filters.top_p, 1e-3) * 0x1p-26);
    const Verdict verdict = judge_list(listed, window.above_count);
    if (verdict.is_close)
      return settle_exactly(s, slice, filters, exponential.largest, columns, rank, first, listed, window.above_count);
    return settle(verdict, listed, window.above_count);
  }

  // Where all listed values lie in a window.
  __device__ __forceinline__ Outcome settle(const Verdict& verdict, u32 listed, u32 before) const {
    const u32 through = before + listed;
    const bool goes_beyond =
        verdict.kept == listed && through < columns && goes_on(above + verdict.window_mass, through);
    return {verdict.kept > 0 && !goes_beyond,
            {verdict.last, verdict.kept_ties, verdict.ties, above + verdict.kept_mass}};
  }

  // The same by masses that are rounded one by one.
  static __device__ __noinline__ Outcome settle_exactly(Shared& s, Slice slice, Filters filters, float largest,
                                                        u32 columns, int rank, float first, u32 listed, u32 before) {
    Search search(s, slice, filters, largest, columns, rank);
    const Grid grid(largest);
    Team::meet();
    search.weigh([&](float t) { return grid.clamped_place(t) > first; }, [](float) { return false; });
    Team::meet();
    search.take_sums();
    return search.settle(search.judge_list(listed, before), listed, before);
  }

  // Masses of all values and of those above the window, with a relative error below 2^-26; list those in the window.
  //
  // A range's mass is its count times the mass of its middle, but for what its values' distances from there make of it.
  // That is so little that float32 is enough.
  __device__ __forceinline__ void survey(const Grid& grid, const Window& window, float first, float last) {
    constexpr float SLOPE = -static_cast<float>(LOG2_E) * Grid::WIDTH;
    const float offset = __fsub_rn(grid.middle_of(0), grid.largest) * static_cast<float>(LOG2_E);
    float rest = 0, rest_above = 0;
#pragma unroll 1
    for (int q = threadIdx.x; q < slice.num_quads; q += THREADS) {
      const float4 v = slice.quads[q];
      const float t[4] = {slice.temper(v.x), slice.temper(v.y), slice.temper(v.z), slice.temper(v.w)};
      bool is_near = false;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float value = fmaxf(t[j], grid.lowest), place = Grid::place(value);
        const float distance = __fmaf_rn(__fsub_rn(place, Grid::ROUND), -Grid::WIDTH, value);
        const float share = nearly_exp2(__fmaf_rn(__fsub_rn(grid.top, place), SLOPE, offset));
        const float growth = __fmaf_rn(__fmaf_rn(distance, 1.0f / 6, 0.5f), distance, 1.0f);
        const float moved = __fmul_rn(share, distance);
        rest = __fmaf_rn(moved, growth, rest);
        if (place > first) rest_above = __fmaf_rn(moved, growth, rest_above);
        is_near |= place <= first && place >= last;
      }
      if (is_near)
#pragma unroll 1
        for (int j = 0; j < 4; ++j) {
          const float value = slice.at(4 * q + j), place = grid.clamped_place(value);
          if (place <= first && place >= last) list(value);
        }
    }
    double total = rest, higher = rest_above;
#pragma unroll
    for (int item = 0; item < Counting::ITEMS; ++item) {
      const int bin = Counting::owned_bin(rank, item);
      const u32 count = s.bins[bin];
      if (count == 0 || bin == BINS - 1) continue;
      const double mass = count * exponential.fine_times_power(grid.middle_of(bin), 0);
      total += mass;
      if (bin < window.first_bin) higher += mass;
    }
    const double scale = exp2(static_cast<double>(unit));
    put(scale * total, scale * higher);
  }

  static __device__ __noinline__ Bound find_by_keys(Shared& s, Slice slice, Filters filters, float largest, u32 columns,
                                                    int rank) {
    return Search(s, slice, filters, largest, columns, rank).find_in_keys();
  }

  // The end lies within the ranges, always.
  __device__ __forceinline__ Bound find_in_keys() {
    const float largest = exponential.largest;
    KeyRanges ranges = {key_of(-INFINITY), key_of(fabsf(largest) < INFINITY ? largest : INFINITY), 0, largest};
    if (by_mass()) find_limit();
    u32 above_count = 0, universe = 0;
    double above_share = 0;
    int misses = 0;  // windows in which the end was not
#pragma unroll 1
    for (int level = 0;; ++level) {
      const auto counts = count_keys(ranges);
      if (counts.total == 0) return {-INFINITY, NONE, NONE, 0};  // NaN alone
      if (level == 0) universe = counts.total;
      u32 end = counts.total - 1;
      if (by_mass()) {
        const u32 nearly = Counting::rank_of(s.histogram, counts, ranges, in_shares(limit) - above_share);
        end = misses > 1 ? end / 2 : min(end, nearly);
      }
      if (filters.top_k > above_count) end = min(end, filters.top_k - above_count - 1);
      const u32 margin = level < 3 ? 4 * MARGIN : 0;
      const Window window = Counting::window(s.histogram, counts, ranges, end > margin ? end - margin : 0,
                                             min(end + margin, counts.total - 1));
      const u32 low = ranges.bottom_of(window.last_bin), high = ranges.top_of(window.first_bin);
      const u32 before = above_count + window.above_count, through = before + window.count;
      const bool is_single = low == high;
      const u64 through_mass = weigh_keys(low, high, window.count <= LISTED && !is_single);
      const u32 listed = window.count <= LISTED && !is_single ? gather_list() : NONE;
      if (before > 0 && !goes_on(above, before)) {  // it ends above
        ranges.low = high + 1;
        ++misses;
      } else if (through < universe && goes_on(through_mass, through)) {  // below
        ranges.high = low - 1;
        above_count = through;
        above_share = in_shares(through_mass);
        ++misses;
      } else if (is_single) {
        return bound_of(judge_equal(value_of(high), window.count, before));
      } else if (listed <= LISTED) {
        sort_list(listed);
        return bound_of(judge_list(listed, before));
      } else {
        ranges.low = low;
        ranges.high = high;
        above_count = before;
        above_share = in_shares(above);
      }
    }
  }

  __device__ __forceinline__ Bound bound_of(const Verdict& verdict) const {
    return {verdict.last, verdict.kept_ties, verdict.ties, above + verdict.kept_mass};
  }

  __device__ __forceinline__ void find_limit() {
    double total = 0;
    slice.template each<THREADS>([&](int, float t) { total += exponential.mass(t, unit); });
    Team::meet();
    put(total, 0);
    Team::meet();
    take_sums();
  }

  __device__ __forceinline__ typename Counting::Counts count_keys(KeyRanges& ranges) {
    Team::meet();
    Counting::clear(s.bins);
    __syncthreads();
    ranges.divide();
    Counting::count(s.bins, slice, ranges);
    if (threadIdx.x == 0) s.listed = 0;
    Team::meet();
    Counting::add_up(s.bins, rank);
    return Counting::look(s.histogram, s.bins, ranges);
  }

  // Mass of what has at least the lower key; that of what lies above the higher one becomes `above`.
  __device__ __forceinline__ u64 weigh_keys(u32 low, u32 high, bool lists) {
    const float top = value_of(high), bottom = value_of(low);
    double through = 0, higher = 0;
    slice.template each<THREADS>([&](int, float t) {
      if (!(t >= bottom)) return;
      const double mass = filters.has_masses ? exponential.mass(t, unit) : 0;
      through += mass;
      if (t > top) higher += mass;
      else if (lists) list(t);
    });
    put(through, higher);
    Team::meet();
    above = static_cast<u64>(Team::gathered(s.above, 0.0, Sum()));
    return static_cast<u64>(Team::gathered(s.totals, 0.0, Sum()));
  }
};

}  // namespace thalweg
