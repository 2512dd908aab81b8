// What a window of a row says about where the prefix ends that the filters keep.
//
// One pass over the row sums the masses of all values, and of those above the window, and lists what lies in the
// window. The list is sorted and settles the end, if it lies there. Masses are whole numbers.
#pragma once
#include "exponentials.cuh"
#include "row_histogram.cuh"

namespace thalweg {

struct Filters {
  double top_p;     // 1 = off
  u32 top_k;        // 0 = off
  float least;      // values below are dropped; -inf = off
  bool has_masses;  // whether the masses are wanted
};

// What is kept: values above `last`, and of those that equal it, `ties` in all, the first `kept_ties`.
struct Bound {
  float last;
  u32 kept_ties, ties;
  u64 mass;
};

template <int THREADS>
struct SearchShared {
  static constexpr int WARPS = THREADS / 32, BINS = HISTOGRAM_BINS, OWN = 512, LISTED = 2048;
  union alignas(16) {
    u32 bins[BINS];
    u32 list[LISTED];
    u64 pairs[LISTED / 2];
  };
  u32 own[OWN];  // keys in the window, of the values of this block
  u64 slots64[WARPS];
  double totals[WARPS], above[WARPS];
  u32 slots32[WARPS];
  HistogramShared<WARPS> histogram;
  u32 listed, num_ties, num_pairs;
  int tie_end;
};

template <int THREADS, int CLUSTER>
struct Windows {
  using Shared = SearchShared<THREADS>;
  using Team = Cluster<THREADS, CLUSTER>;
  static constexpr int OWN = Shared::OWN, LISTED = Shared::LISTED;
  static constexpr u32 NONE = 0xFFFFFFFFu;

  // What of a window is kept, and of the values that equal the last one kept.
  struct Verdict {
    u32 kept, kept_ties, ties;
    bool is_close;  // masses that are a little different may say something else
    u64 kept_mass, window_mass;
    float last;
  };

  Shared& s;
  const Slice& slice;
  const Filters& filters;
  const Exponential exponential;
  const int unit;   // the most probable token has mass 2^unit
  const int rank;   // of the block
  const u32 columns;  // of the row
  u64 above = 0;   // mass above the window
  u64 limit = 0;   // mass at which top-p ends
  u64 slack = 0;   // by which both may be wrong
  bool has_limit = false;

  __device__ __forceinline__ Windows(Shared& shared, const Slice& values, const Filters& chosen, float largest,
                                     u32 row_columns, int block_rank)
      : s(shared), slice(values), filters(chosen), exponential(largest), unit(unit_of(row_columns)), rank(block_rank),
        columns(row_columns) {}

  // So that masses of a row sum up to what fits into float64.
  static __device__ __forceinline__ int unit_of(u32 columns) {
    return 52 - (32 - __clz(static_cast<int>(columns - 1)));
  }

  __device__ __forceinline__ bool by_mass() const { return filters.top_p < 1; }

  __device__ __forceinline__ double in_shares(u64 mass) const {
    return static_cast<double>(mass) * exp2(-static_cast<double>(unit));
  }

  // Whether the prefix takes more than what has this mass and is so many.
  __device__ __forceinline__ bool goes_on(u64 mass, u32 count) const {
    return (!by_mass() || mass <= limit) && (!filters.top_k || count < filters.top_k);
  }

  __device__ __forceinline__ void list(float t) {
    const u32 place = atomicAdd(&s.listed, 1u);
    if (place < OWN) s.own[place] = key_of(t);
  }

  // Masses of all values, unless the limit is known, and of those that is_above says; list those that is_near says.
  template <class Above, class Near>
  __device__ __forceinline__ void weigh(Above is_above, Near is_near) {
    const bool sums_all = by_mass() && !has_limit;
    double total = 0, higher = 0;  // of whole numbers, exact in any order
    slice.template each<THREADS>([&](int, float t) {
      const bool is_higher = is_above(t);
      if (filters.has_masses && (sums_all || is_higher)) {
        const double mass = exponential.mass(t, unit);
        total += mass;
        if (is_higher) higher += mass;
      }
      if (is_near(t)) list(t);
    });
    put(total, higher);
  }

  __device__ __forceinline__ void put(double total, double higher) {
    Team::put(higher, s.above, Sum());
    Team::put(total, s.totals, Sum());
  }

  // Behind a meeting, sums of the whole row.
  __device__ __forceinline__ void take_sums() {
    above = static_cast<u64>(Team::gathered(s.above, 0.0, Sum()));
    if (by_mass() && !has_limit) {
      limit = static_cast<u64>(__dmul_rn(filters.top_p, Team::gathered(s.totals, 0.0, Sum())));
      has_limit = true;
    }
  }

  // Copy the lists of all blocks into one; behind a meeting. Its length, more than LISTED if there is no room.
  __device__ __forceinline__ u32 gather_list() {
    const u32 there = Team::lane() < CLUSTER ? *Team::of(&s.listed, Team::lane()) : 0;
    const u32 before = before_in_warp(there), listed = __shfl_sync(NONE, before + there, 31);
    const bool is_too_long = __ballot_sync(NONE, there > OWN) != 0 || listed > LISTED;
    if (is_too_long) return NONE;
#pragma unroll
    for (int turn = 0; turn < (CLUSTER + Team::WARPS - 1) / Team::WARPS; ++turn) {
      const int other = turn * Team::WARPS + Team::warp();
      const u32 count = __shfl_sync(NONE, there, other % 32), first = __shfl_sync(NONE, before, other % 32);
      if (other >= CLUSTER) break;
      const u32* from = Team::of(s.own, other);
      for (u32 i = Team::lane(); i < count; i += 32) s.list[first + i] = from[i];
    }
    __syncthreads();
    return listed;
  }

  __device__ __forceinline__ void sort_list(u32 listed) {
    int size = 2;
    while (size < listed) size *= 2;
    for (u32 i = listed + threadIdx.x; i < size; i += THREADS) s.list[i] = 0;
    __syncthreads();
    Team::sort_descending(s.list, size);
  }

  // What of a window with a single value is kept.
  __device__ __forceinline__ Verdict judge_equal(float value, u32 count, u32 before) const {
    const u64 mass = filters.has_masses ? static_cast<u64>(exponential.mass(value, unit)) : 0;
    u64 kept = count;
    if (by_mass()) {
      if (above > limit) kept = 0;
      else if (mass > 0) kept = min(kept, (limit - above) / mass + 1);
    }
    if (filters.top_k) kept = min(kept, static_cast<u64>(filters.top_k > before ? filters.top_k - before : 0));
    if (before == 0 && kept == 0) kept = 1;
    return {static_cast<u32>(kept), static_cast<u32>(kept), count, false, kept * mass, count * mass, value};
  }

  // What of the sorted list is kept.
  __device__ __forceinline__ Verdict judge_list(u32 count, u32 before) {
    const u32 per = (count + THREADS - 1) / THREADS, from = min(threadIdx.x * per, count), to = min(from + per, count);
    const auto mass_of = [&](u32 i) {
      return filters.has_masses ? static_cast<u64>(exponential.mass(value_of(s.list[i]), unit)) : 0;
    };
    const auto is_near = [&](u64 mass) { return by_mass() && mass + slack >= limit && mass <= limit + slack; };
    u64 own = 0, window_mass = 0, kept_mass = 0;
    for (u32 i = from; i < to; ++i) own += mass_of(i);
    u64 running = above + Team::before(own, s.slots64, window_mass);
    u32 own_kept = 0, kept = 0;  // in the upper half: how many are close
    u64 own_mass = 0;
    for (u32 i = from; i < to; ++i) {
      const bool is_kept = before + i == 0 || goes_on(running, before + i);
      const u64 mass = mass_of(i);
      if (slack > 0 && (is_near(running) || is_near(running + mass))) own_kept += 0x10000u;
      running += mass;
      own_kept += is_kept;
      own_mass += is_kept ? mass : 0;
    }
    Team::before(own_kept, s.slots32, kept);
    Team::before(own_mass, s.slots64, kept_mass);
    const bool is_close = kept >> 16 != 0;
    kept &= 0xFFFF;
    if (kept == 0) return {0, 0, 0, is_close, 0, window_mass, 0.0f};
    const u32 key = s.list[kept - 1];
    u32 own_ties = 0, ties = 0;  // of the last one: kept ones below 2^16, all above
    for (u32 i = from; i < to; ++i) own_ties += s.list[i] == key ? (i < kept ? 0x10001u : 0x10000u) : 0;
    Team::before(own_ties, s.slots32, ties);
    return {kept, ties & 0xFFFF, ties >> 16, is_close, kept_mass, window_mass, value_of(key)};
  }
};

}  // namespace thalweg
