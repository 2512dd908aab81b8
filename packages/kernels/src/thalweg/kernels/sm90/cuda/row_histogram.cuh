// A row in the shared memory of a cluster, and how many of its values lie in which narrow range.
//
// Ranges are of equal width from the largest value on, as long as a token there has a mass; or of the integers that order
// values, to look closer at an interval of them. As the mass of a narrow range is its count times the mass of its middle,
// counts tell nearly where the prefix that top-p keeps will end: a window of ranges around that is what must be sorted.
#pragma once
#include "row_block.cuh"

namespace thalweg {

// The part of a row that a block holds. Behind its end come up to three NaN, which compare to nothing.
struct Slice {
  const float4* quads;
  int count, num_quads;
  float scale;

  __device__ __forceinline__ float temper(float x) const { return __fmul_rn(x, scale); }
  __device__ __forceinline__ float at(int i) const { return temper(reinterpret_cast<const float*>(quads)[i]); }

  template <int THREADS, class Function>
  __device__ __forceinline__ void each(Function function) const {
#pragma unroll 2
    for (int q = threadIdx.x; q < num_quads; q += THREADS) {
      const float4 v = quads[q];
      function(4 * q, temper(v.x));
      function(4 * q + 1, temper(v.y));
      function(4 * q + 2, temper(v.z));
      function(4 * q + 3, temper(v.w));
    }
  }
};

// An interval of keys, in BINS ranges that follow each other from the largest value on.
template <int BINS>
struct Ranges {
  static constexpr float TWO_23 = 8388608.0f;
  u32 low, high;
  int shift;
  bool is_linear;  // of values, from the largest on
  float largest, slope;

  // Keys of `low` to `high` themselves, in ranges as narrow as they can be.
  __device__ __forceinline__ void divide() {
    shift = 0;
    while ((high - low) >> shift >= BINS) ++shift;
  }
  __device__ __forceinline__ int linear(float t) const {
    // Rounded to a whole number by an addition, which leaves it in the last bits.
    const float place = __fmaf_rn(__fsub_rn(largest, t), slope, TWO_23);
    return static_cast<int>(__float_as_uint(fminf(place, TWO_23 + (BINS - 1))) - 0x4B000000u);
  }
  __device__ __forceinline__ bool holds(u32 key) const { return key >= low && key <= high; }
  // Of a token in a range, nearly, as a share of the most probable one's mass.
  __device__ __forceinline__ double share(int bin) const {
    if (is_linear) return bin == BINS - 1 ? 0.0f : expf(-bin / slope);
    const u32 below = static_cast<u32>(bin) << shift;  // by its largest value, as others may be nothing beside that
    return expf(value_of(high - min(below, high - low)) - largest);
  }
};

// Values of neighbouring ranges, with what lies in ranges above them.
struct Window {
  u32 low, high;  // keys
  u32 count, above_count;
  double above_share;
};

constexpr int HISTOGRAM_BINS = 2048;

template <int WARPS>
struct HistogramShared {
  u32 slots32[WARPS];
  double slots_double[WARPS];
  u32 rank, first_bin, last_bin, before_first, through_last, keys[2];
  double share_before_first;
};

template <int THREADS, int CLUSTER>
struct Histogram {
  using Team = Cluster<THREADS, CLUSTER>;
  using Shared = HistogramShared<Team::WARPS>;
  static constexpr int BINS = HISTOGRAM_BINS, PER = BINS / THREADS;
  static constexpr u32 ALL_LANES = 0xFFFFFFFFu;
  using Ranges = thalweg::Ranges<BINS>;

  // What a thread knows of its ranges, PER in a row.
  struct Counts {
    u32 of[PER];
    u32 before, total;  // in ranges before, in all
    double own_share, share_before, total_share;
  };

  static __device__ __forceinline__ void clear(u32* bins) {
    for (int i = threadIdx.x; i < BINS; i += THREADS) bins[i] = 0;
  }

  static __device__ __forceinline__ void count(u32* bins, const Slice& slice, const Ranges& ranges, float least) {
    if (ranges.is_linear) {
      slice.each<THREADS>([&](int, float t) {
        if (t >= least) atomicAdd(&bins[ranges.linear(t)], 1u);
      });
    } else {
      slice.each<THREADS>([&](int, float t) {
        const u32 key = key_of(t);
        if (ranges.holds(key)) atomicAdd(&bins[(ranges.high - key) >> ranges.shift], 1u);
      });
    }
  }

  // Counts of the whole row, from those of all blocks; behind a meeting.
  static __device__ __forceinline__ Counts gather(Shared& s, u32* bins, const Ranges& ranges) {
    Counts counts = {};
#pragma unroll
    for (int rank = 0; rank < CLUSTER; ++rank) {
      const uint4* words = reinterpret_cast<const uint4*>(Team::of(bins, rank)) + threadIdx.x * (PER / 4);
#pragma unroll
      for (int i = 0; i < PER / 4; ++i) {
        const uint4 v = words[i];
        counts.of[4 * i] += v.x;
        counts.of[4 * i + 1] += v.y;
        counts.of[4 * i + 2] += v.z;
        counts.of[4 * i + 3] += v.w;
      }
    }
    u32 own = 0;
#pragma unroll
    for (int i = 0; i < PER; ++i) {
      own += counts.of[i];
      if (counts.of[i]) counts.own_share += counts.of[i] * ranges.share(threadIdx.x * PER + i);
    }
    counts.before = Team::before(own, s.slots32, counts.total);
    counts.share_before = Team::before(counts.own_share, s.slots_double, counts.total_share);
    return counts;
  }

  // The rank at which the shares of larger values reach `share`, nearly; the last one if they do not.
  static __device__ __forceinline__ u32 rank_of(Shared& s, const Counts& counts, const Ranges& ranges, double share) {
    if (threadIdx.x == 0) s.rank = share < 0 ? 0 : counts.total - 1;
    __syncthreads();
    if (share >= counts.share_before && share < counts.share_before + counts.own_share) {
      double running = counts.share_before;
      u32 count = counts.before;
      bool is_found = false;
#pragma unroll
      for (int i = 0; i < PER; ++i) {
        const double here = counts.of[i] ? counts.of[i] * ranges.share(threadIdx.x * PER + i) : 0;
        if (!is_found && running + here > share) {
          is_found = true;
          atomicMin(&s.rank, count + static_cast<u32>((share - running) / here * counts.of[i]));
        }
        running += here;
        count += counts.of[i];
      }
    }
    __syncthreads();
    return s.rank;
  }

  // The ranges that hold the ranks from `first` to `last`.
  static __device__ __forceinline__ Window window(Shared& s, const Counts& counts, const Ranges& ranges, u32 first,
                                                  u32 last) {
    const int base = threadIdx.x * PER;
    u32 count = counts.before;
    double share = counts.share_before;
#pragma unroll
    for (int i = 0; i < PER; ++i) {
      if (first >= count && first < count + counts.of[i]) {
        s.first_bin = base + i;
        s.before_first = count;
        s.share_before_first = share;
      }
      if (counts.of[i]) share += counts.of[i] * ranges.share(base + i);
      count += counts.of[i];
      if (last >= count - counts.of[i] && last < count) {
        s.last_bin = base + i;
        s.through_last = count;
      }
    }
    __syncthreads();
    find_keys(s, ranges);
    return {s.keys[0], s.keys[1], s.through_last - s.before_first, s.before_first, s.share_before_first};
  }

 private:
  // The largest key whose value has a linear range from `bin` on, or the smallest one with a range up to it.
  static __device__ __forceinline__ u32 edge(const Ranges& ranges, int bin, bool is_top) {
    u32 low = key_of(-INFINITY), high = key_of(ranges.largest);  // low: in ranges behind; high: in ranges before
    while (high - low > 1) {
      const u64 width = high - low;
      const u32 probe = low + static_cast<u32>(width * (Team::lane() + 1) / 33);
      const int found = ranges.linear(value_of(probe));
      const u32 behind = __popc(__ballot_sync(ALL_LANES, is_top ? found >= bin : found > bin));
      const u32 first = low;
      if (behind > 0) low = first + static_cast<u32>(width * behind / 33);
      if (behind < 32) high = first + static_cast<u32>(width * (behind + 1) / 33);
    }
    return is_top ? low : high;
  }

  // Keys of the window from first_bin to last_bin, in s.keys: smallest, largest.
  static __device__ __forceinline__ void find_keys(Shared& s, const Ranges& ranges) {
    const int warp = Team::warp(), first = s.first_bin, last = s.last_bin;
    if (warp == 0) {
      u32 key = ranges.low;
      if (ranges.is_linear) {
        if (last < BINS - 1) key = max(key, edge(ranges, last, false));
      } else {
        const u64 reach = (static_cast<u64>(last) + 1) << ranges.shift;
        if (ranges.high - ranges.low >= reach) key = static_cast<u32>(ranges.high - reach + 1);
      }
      if (Team::lane() == 0) s.keys[0] = key;
    } else if (warp == 1) {
      u32 key = ranges.high;
      if (ranges.is_linear) {
        if (first > 0) key = edge(ranges, first, true);
      } else {
        key = ranges.high - (static_cast<u32>(first) << ranges.shift);
      }
      if (Team::lane() == 0) s.keys[1] = key;
    }
    __syncthreads();
  }
};

}  // namespace thalweg
