// What a block shares that selects from a row, and what all its threads do together.
#pragma once
#include "topk_row.cuh"

namespace thalweg {

// THREADS of a block; MAX_COLUMNS that a row may have; KEPT chunks at most.
template <int THREADS, int MAX_COLUMNS, int KEPT>
struct TopkBlock {
  static constexpr int WARPS = THREADS / 32, BINS = 2048, PER_THREAD = BINS / THREADS;
  static constexpr int FLIGHT = 8, BATCH = 2;  // loads of a thread that wait together, at first and again
  static constexpr int WORDS = MAX_COLUMNS / CHUNK / 32 + 1;
  // A group of chunks has a largest score of its own, in shared memory: one chunk, or in rows of more a whole flight.
  static constexpr int GROUPS = 16384, GROUP_BITS = 3, HOT = 4096;
  static_assert(GROUPS * FLIGHT >= MAX_COLUMNS / CHUNK);

  // What shares memory is never in use at the same time.
  struct Shared {
    union {
      uint4 parts[KEPT];  // chunks that were kept, in any order
      uint16_t largest[GROUPS];  // score of each group, as bfloat16
      uint4 largest_of_flight[GROUPS / FLIGHT];
    };
    union {
      struct {
        int bound_bins[BINS];
        int bins[BINS];
      };
      int ordered_chunks[KEPT];  // chunks that were kept, by number, in the order of columns
    };
    int chunks[KEPT];  // which chunks were kept
    union {
      uint16_t hot[HOT];  // groups to be read again
      uint16_t ordered_bits[KEPT];  // scores of a chunk above the last one, then those that equal it
    };
    uint32_t words[WORDS];  // one bit for each chunk that may hold a selected score
    uint16_t words_before[WORDS];  // bits in words before this one
    int2 sums[2][WARPS];
    int most[WARPS];
    int found[2];
    int above[2];
    int num_hot;
    int num_kept;
  };

  // Sums over all threads before this one, in the order of threads. Of two calls in a row, each has a buffer.
  static __device__ __forceinline__ int2 before(Shared& s, int buffer, int2 value, int2& total) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int2 sum = value;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const int x = __shfl_up_sync(~0u, sum.x, step), y = __shfl_up_sync(~0u, sum.y, step);
      if (lane >= step) sum = {sum.x + x, sum.y + y};
    }
    if (lane == 31) s.sums[buffer][warp] = sum;
    __syncthreads();
    const int2 part = lane < WARPS ? s.sums[buffer][lane] : int2{0, 0};
    total = {__reduce_add_sync(~0u, part.x), __reduce_add_sync(~0u, part.y)};
    const bool is_before = lane < warp;
    return {sum.x - value.x + __reduce_add_sync(~0u, is_before ? part.x : 0),
            sum.y - value.y + __reduce_add_sync(~0u, is_before ? part.y : 0)};
  }

  // Where the rank-th largest of what was counted is: its bin, counted from the top, or -1 if there are fewer.
  struct Place {
    int bin;
    int above;  // counted in bins above
  };

  // `count`: anything else to be added up, over the threads before this one.
  static __device__ __forceinline__ Place find(Shared& s, int buffer, const int (&bins)[BINS], int rank, int count,
                                               int& count_before) {
    static_assert(PER_THREAD == 4);
    const int4 own = reinterpret_cast<const int4*>(bins)[threadIdx.x];
    const int counts[4] = {own.x, own.y, own.z, own.w}, sum = own.x + own.y + own.z + own.w;
    int2 totals;
    const int2 sums = before(s, buffer, {sum, count}, totals);
    count_before = sums.y;
    int upto = sums.x;
    if (upto < rank && upto + sum >= rank) {
      int i = 0;
#pragma unroll
      for (int next = 0; next < 3; ++next)
        if (i == next && upto + counts[next] < rank) {
          upto += counts[next];
          ++i;
        }
      s.found[buffer] = threadIdx.x * PER_THREAD + i;
      s.above[buffer] = upto;
    }
    __syncthreads();
    const int bin = s.found[buffer];
    return {bin, bin < 0 ? totals.x : s.above[buffer]};
  }

  static __device__ __forceinline__ int largest(Shared& s, int value) {
    value = __reduce_max_sync(~0u, value);
    if (threadIdx.x % 32 == 0) s.most[threadIdx.x / 32] = value;
    __syncthreads();
    return __reduce_max_sync(~0u, threadIdx.x % 32 < WARPS ? s.most[threadIdx.x % 32] : NOTHING);
  }

  // Scores from `least` on: those above `top` are counted in the first bin, 2^shift others in each of the next ones.
  struct Range {
    int least;
    int top;
    int shift;
  };
  // With this shift, bins reach from infinity to the lowest finite score.
  static constexpr int COARSE = 5;
  static_assert((INFINITE - LEAST >> COARSE) + 1 < BINS);

  static __device__ __forceinline__ void count(Shared& s, const uint4& chunk, const Range& range) {
#pragma unroll 1
    for (uint32_t left = at_least(chunk, score_pair(range.least)); left; left &= left - 1) {
      const int score = score_of(chunk, __ffs(left) - 1);
      const int bin = score > range.top ? 0 : (range.top - score >> range.shift) + 1;
      if (bin < BINS) atomicAdd(&s.bins[bin], 1);
    }
  }

  // The last score that is selected, and how many that equal it are.
  struct Last {
    int score;
    int room;
  };

  // Bins hold none at first; `count_all` counts what there is in a range. Single scores from `top` down are tried
  // first. Where the k-th largest is further down than bins reach, a coarse count finds among which few scores it is.
  // `is_all`: there are no more than k scores, so that none need be counted. Sums of `marked` come out as by `find`.
  template <class Counter>
  static __device__ __forceinline__ Last find_last(Shared& s, int k, int least, int top, bool is_all, int marked,
                                                   int& marked_before, const Counter& count_all) {
    Range range{least, top, 0};
#pragma unroll 1
    for (bool is_first = true;; is_first = false) {
      if (!is_all) count_all(range);
      __syncthreads();
      const Place place = find(s, 1, s.bins, k, marked, marked_before);
      if (place.bin >= 0 && range.shift == 0)
        return {place.bin == 0 ? INFINITE : range.top - place.bin + 1, k - place.above};
      if (place.bin < 0 && (is_all || !is_first || top - BINS + 1 < least)) return {least, k};
      if (is_first) range = {least, INFINITE, COARSE};
      else range = {least, INFINITE - (place.bin - 1 << COARSE), 0};
      __syncthreads();
      reinterpret_cast<int4*>(s.bins)[threadIdx.x] = {0, 0, 0, 0};
      if (threadIdx.x == 0) s.found[1] = -1;
      __syncthreads();
    }
  }

  // Scores of a chunk that are written: all bits of .x, and the first of .y as long as there is room.
  static __device__ __forceinline__ uint2 selected(const uint4& chunk, int last) {
    const __nv_bfloat162 pair = score_pair(last);
    const uint32_t larger = above(chunk, pair);
    return {larger, at_least(chunk, pair) & ~larger};
  }

  static __device__ __forceinline__ void write(const TopkRow& row, int* ids, int chunk, uint2 bits, int2& at,
                                               int room) {
#pragma unroll 1
    for (uint32_t some = bits.x | bits.y; some; some &= some - 1) {
      const int i = __ffs(some) - 1;
      const bool is_above = bits.x >> i & 1;
      if (is_above || at.y < room) ids[at.x + min(at.y, room)] = chunk * CHUNK + i - row.offset;
      (is_above ? at.x : at.y) += 1;
    }
  }
};

}  // namespace thalweg
