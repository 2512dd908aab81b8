// What the values of a window of a row say about where the prefix ends that the filters keep.
//
// One pass over the row sums the masses of all values, and of those above the window, as whole numbers, and lists what
// lies in the window. The list is sorted and settles the end exactly, if it lies there.
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
  static constexpr int BINS = Shared::BINS, OWN = Shared::OWN, LISTED = Shared::LISTED;
  static constexpr u32 NONE = 0xFFFFFFFFu;

  // What of a window is kept, and of the values that equal the last one kept.
  struct Verdict {
    u32 kept, kept_ties, ties;
    u64 kept_mass, window_mass;
    float last;
  };

  Shared& s;
  const Slice& slice;
  const Filters& filters;
  const Exponential exponential;
  const int unit;  // the most probable token has mass 2^unit
  u64 above = 0;   // mass above the window
  u64 limit = 0;   // mass at which top-p ends
  bool has_limit = false;

  __device__ __forceinline__ Windows(Shared& shared, const Slice& values, const Filters& chosen, float largest,
                                     int exponent)
      : s(shared), slice(values), filters(chosen), exponential(largest), unit(exponent) {}

  __device__ __forceinline__ double in_shares(u64 mass) const {
    return static_cast<double>(mass) * exp2(-static_cast<double>(unit));
  }

  // Whether the prefix takes more than what has this mass and is so many.
  __device__ __forceinline__ bool goes_on(u64 mass, u32 count) const {
    return (filters.top_p >= 1 || mass <= limit) && (!filters.top_k || count < filters.top_k);
  }

  // What the window says; false if it has too many values to be sorted.
  __device__ __forceinline__ bool examine(const Window& window, u32 before, Verdict& verdict) {
    const bool is_single = window.low == window.high;
    if (window.count > LISTED && !is_single) return false;
    weigh(value_of(window.high), is_single ? INFINITY : value_of(window.low));
    Team::meet();
    above = static_cast<u64>(Team::gathered(s.above, 0.0, Sum()));
    if (filters.top_p < 1 && !has_limit) {
      limit = static_cast<u64>(__dmul_rn(filters.top_p, Team::gathered(s.totals, 0.0, Sum())));
      has_limit = true;
    }
    if (is_single) {
      verdict = judge_equal(value_of(window.high), window.count, before);
      return true;
    }
    const u32 listed = gather_list();
    if (listed > LISTED) return false;
    int size = 2;
    while (size < listed) size *= 2;
    for (u32 i = listed + threadIdx.x; i < size; i += THREADS) s.list[i] = 0;
    __syncthreads();
    Team::sort_descending(s.list, size);
    verdict = judge_list(listed, before);
    return true;
  }

 private:
  // Put the masses of all values, unless the limit is known, and of those above `top`; list those from `bottom` to `top`.
  __device__ __forceinline__ void weigh(float top, float bottom) {
    const bool sums_all = filters.top_p < 1 && !has_limit;
    double total = 0, higher = 0;  // of whole numbers, exact in any order
    if (sums_all && !exponential.is_coarse) {
      survey(top, bottom, total, higher);
    } else {
      slice.each<THREADS>([&](int, float t) {
        const bool is_above = t > top;
        if (filters.has_masses && (sums_all || is_above)) {
          const double mass = exponential.mass(t, unit);
          total += mass;
          if (is_above) higher += mass;
        }
        if (t >= bottom && !is_above) list(t);
      });
    }
    Team::put(higher, s.above, Sum());
    Team::put(total, s.totals, Sum());
  }

  // The same with as little as possible for a value: it takes more than half of the time of a row.
  __device__ __forceinline__ void survey(float top, float bottom, double& total, double& higher) {
#pragma unroll 1
    for (int q = threadIdx.x; q < slice.num_quads; q += THREADS) {
      const float4 v = slice.quads[q];
      const float t[4] = {slice.temper(v.x), slice.temper(v.y), slice.temper(v.z), slice.temper(v.w)};
      bool is_near = false;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const double mass = exponential.fine_mass(t[j], unit);
        total += mass;
        if (t[j] > top) higher += mass;
        is_near |= t[j] >= bottom && !(t[j] > top);
      }
      if (is_near)
#pragma unroll 1
        for (int j = 0; j < 4; ++j)
          if (slice.at(4 * q + j) >= bottom && !(slice.at(4 * q + j) > top)) list(slice.at(4 * q + j));
    }
  }

  __device__ __forceinline__ void list(float t) {
    const u32 place = atomicAdd(&s.listed, 1u);
    if (place < OWN) s.own[place] = key_of(t);
  }

  // Copy the lists of all blocks into one. Its length, more than LISTED if some of them are too long.
  __device__ __forceinline__ u32 gather_list() {
    u32 listed = 0;
    bool is_too_long = false;
#pragma unroll 1
    for (int rank = 0; rank < CLUSTER; ++rank) {
      const u32 there = *Team::of(&s.listed, rank);
      if (there > OWN) is_too_long = true;
      else if (listed + there <= LISTED)
        for (u32 i = threadIdx.x; i < there; i += THREADS) s.list[listed + i] = Team::of(s.own, rank)[i];
      listed += there;
    }
    return is_too_long ? NONE : listed;
  }

  // What of a window with a single value is kept.
  __device__ __forceinline__ Verdict judge_equal(float value, u32 count, u32 before) const {
    const u64 mass = filters.has_masses ? static_cast<u64>(exponential.mass(value, unit)) : 0;
    u64 kept = count;
    if (filters.top_p < 1) {
      if (above > limit) kept = 0;
      else if (mass > 0) kept = min(kept, (limit - above) / mass + 1);
    }
    if (filters.top_k) kept = min(kept, static_cast<u64>(filters.top_k > before ? filters.top_k - before : 0));
    if (before == 0 && kept == 0) kept = 1;
    return {static_cast<u32>(kept), static_cast<u32>(kept), count, kept * mass, count * mass, value};
  }

  // What of the sorted list is kept.
  __device__ __forceinline__ Verdict judge_list(u32 count, u32 before) {
    const u32 per = (count + THREADS - 1) / THREADS, from = min(threadIdx.x * per, count), to = min(from + per, count);
    const auto mass_of = [&](u32 i) {
      return filters.has_masses ? static_cast<u64>(exponential.mass(value_of(s.list[i]), unit)) : 0;
    };
    u64 own = 0, window_mass = 0, kept_mass = 0;
    for (u32 i = from; i < to; ++i) own += mass_of(i);
    u64 running = above + Team::before(own, s.slots64, window_mass);
    u32 own_kept = 0, kept = 0;
    u64 own_mass = 0;
    for (u32 i = from; i < to; ++i) {
      const bool is_kept = before + i == 0 || goes_on(running, before + i);
      const u64 mass = mass_of(i);
      running += mass;
      own_kept += is_kept;
      own_mass += is_kept ? mass : 0;
    }
    Team::before(own_kept, s.slots32, kept);
    Team::before(own_mass, s.slots64, kept_mass);
    if (kept == 0) return {0, 0, 0, 0, window_mass, 0.0f};
    const u32 key = s.list[kept - 1];
    u32 own_ties = 0, ties = 0;  // of the last one: kept ones below 2^16, all above
    for (u32 i = from; i < to; ++i) own_ties += s.list[i] == key ? (i < kept ? 0x10001u : 0x10000u) : 0;
    Team::before(own_ties, s.slots32, ties);
    return {kept, ties & 0xFFFF, ties >> 16, kept_mass, window_mass, value_of(key)};
  }
};

}  // namespace thalweg
