// A row in the shared memory of a cluster, and how many of its values lie in which narrow range.
//
// Counts tell nearly where the prefix ends that filters keep, as the mass of a narrow range is its count times the mass
// of its middle. A window of ranges around that end is what must be looked at.
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

constexpr int HISTOGRAM_BINS = 2048;

// Ranges of values of equal width, from that of the largest value on. The last one has all that is smaller, and
// padding; tokens there have no mass.
struct Grid {
  static constexpr float PER_UNIT = 64.0f, WIDTH = 0.015625f, REACH = 40.0f;
  static constexpr float ROUND = 12582912.0f;  // its sum with a number is a whole number, in the last bits
  float largest, lowest;
  float top;  // place of the largest value

  __device__ __forceinline__ explicit Grid(float l) : largest(l), lowest(__fsub_rn(l, REACH)), top(place(l)) {}

  // Whether places are exact.
  static __device__ __forceinline__ bool fits(float largest) { return fabsf(largest) < 32768.0f; }
  static __device__ __forceinline__ float place(float t) { return __fmaf_rn(t, PER_UNIT, ROUND); }
  // Of a value or of NaN, which comes behind all others.
  __device__ __forceinline__ float clamped_place(float t) const { return place(fmaxf(t, lowest)); }
  __device__ __forceinline__ int bin_of(float t) const {
    return min(static_cast<int>(__float_as_uint(top) - __float_as_uint(clamped_place(t))), HISTOGRAM_BINS - 1);
  }
  __device__ __forceinline__ float place_of(int bin) const { return top - bin; }
  __device__ __forceinline__ float middle_of(int bin) const { return (place_of(bin) - ROUND) * WIDTH; }
  // Of a token in a range, nearly, as a share of the most probable one's mass.
  __device__ __forceinline__ double share(int bin) const { return __expf(middle_of(bin) - largest); }
};

// Ranges of equal width of the integers that order values, in an interval of them.
struct KeyRanges {
  u32 low, high;
  int shift;
  float largest;  // of the row

  // Divide the interval: ranges as narrow as can be.
  __device__ __forceinline__ void divide() {
    shift = 0;
    while ((high - low) >> shift >= HISTOGRAM_BINS) ++shift;
  }
  // -1 = in none of them.
  __device__ __forceinline__ int bin_of(float t) const {
    const u32 key = key_of(t);
    return key >= low && key <= high ? static_cast<int>((high - key) >> shift) : -1;
  }
  __device__ __forceinline__ u32 top_of(int bin) const { return high - (static_cast<u32>(bin) << shift); }
  __device__ __forceinline__ u32 bottom_of(int bin) const {
    const u64 reach = (static_cast<u64>(bin) + 1) << shift;
    return high - low >= reach ? static_cast<u32>(high - reach + 1) : low;
  }
  // By its largest value, as others may be nothing beside that.
  __device__ __forceinline__ double share(int bin) const {
    const u32 below = static_cast<u32>(bin) << shift;
    return expf(value_of(high - min(below, high - low)) - largest);
  }
};

// Neighbouring ranges, with what lies in ranges above them.
struct Window {
  int first_bin, last_bin;
  u32 count, above_count;
  double above_share;
};

template <int WARPS>
struct HistogramShared {
  u32 slots32[WARPS];
  double slots_double[WARPS];
  u32 rank, first_bin, last_bin, before_first, through_last;
  double share_before_first;
};

template <int THREADS, int CLUSTER>
struct Histogram {
  using Team = Cluster<THREADS, CLUSTER>;
  using Shared = HistogramShared<Team::WARPS>;
  static constexpr int BINS = HISTOGRAM_BINS, PER = BINS / THREADS;
  static constexpr int OWNED = BINS / CLUSTER, ITEMS = OWNED / THREADS;  // by a block, by one of its threads
  static_assert(ITEMS > 0);

  // What a thread knows of its ranges, PER in a row.
  struct Counts {
    u32 of[PER];
    u32 before, total;  // in ranges before, in all
    double own_share, share_before, total_share;
  };

  static __device__ __forceinline__ void clear(u32* bins) {
    for (int i = threadIdx.x; i < BINS; i += THREADS) bins[i] = 0;
  }

  static __device__ __forceinline__ void count(u32* bins, const Slice& slice, const Grid& grid) {
    slice.each<THREADS>([&](int, float t) { atomicAdd(&bins[grid.bin_of(t)], 1u); });
  }

  static __device__ __forceinline__ void count(u32* bins, const Slice& slice, const KeyRanges& ranges) {
    slice.each<THREADS>([&](int, float t) {
      const int bin = t >= -INFINITY ? ranges.bin_of(t) : -1;
      if (bin >= 0) atomicAdd(&bins[bin], 1u);
    });
  }

  static __device__ __forceinline__ int owned_bin(int rank, int item) {
    return rank * OWNED + item * THREADS + threadIdx.x;
  }

  // Counts of the whole row in place of those of a block, in all blocks, each of which adds up a part. Before and
  // behind it the blocks have met.
  static __device__ __forceinline__ void add_up(u32* bins, int rank) {
    if constexpr (CLUSTER > 1) {
#pragma unroll
      for (int item = 0; item < ITEMS; ++item) {
        u32* bin = bins + owned_bin(rank, item);
        u32 sum = 0;
#pragma unroll
        for (int other = 0; other < CLUSTER; ++other) sum += *Team::of(bin, other);
#pragma unroll
        for (int other = 0; other < CLUSTER; ++other) *Team::of(bin, other) = sum;
      }
      Team::meet();
    }
  }

  template <class Ranges>
  static __device__ __forceinline__ Counts look(Shared& s, const u32* bins, const Ranges& ranges) {
    Counts counts = {};
    const uint4* words = reinterpret_cast<const uint4*>(bins) + threadIdx.x * (PER / 4);
    u32 own = 0;
#pragma unroll
    for (int i = 0; i < PER / 4; ++i) {
      const uint4 v = words[i];
      counts.of[4 * i] = v.x;
      counts.of[4 * i + 1] = v.y;
      counts.of[4 * i + 2] = v.z;
      counts.of[4 * i + 3] = v.w;
    }
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
  template <class Ranges>
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
  template <class Ranges>
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
    return {static_cast<int>(s.first_bin), static_cast<int>(s.last_bin), s.through_last - s.before_first,
            s.before_first, s.share_before_first};
  }
};

}  // namespace thalweg
