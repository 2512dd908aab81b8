// The k largest of a row of bfloat16 scores: their columns ascending, lower columns first among equal scores.
//
// One block takes a row. It reads the row once and keeps the largest score of each of thousands of subsets. The k-th
// largest of those is a bound below the k-th largest score of all, and little more than k scores reach it. Only subsets
// whose largest one does are read again, out of the L2 cache. A histogram with one bin for each score then gives the
// k-th largest score itself, and bitmaps of who reaches it put columns in order. Where the bound says nothing, as among
// equal scores, all that differs is that more is read again.
//
// Scores are compared as integers: a magnitude, negative for negative scores, so that both zeros are equal.
#pragma once
#include <cuda_bf16.h>
#include <cstdint>

namespace thalweg {

struct TopkArguments {
  const __nv_bfloat16* scores;
  const int* visible;
  int* ids;              // [rows, k]
  long long row_stride;
  int columns;
  int k;
  int per_entry;  // visible counts so many times finer than columns
};

// THREADS of a block; MAX_COLUMNS that a row may have.
template <int THREADS, int MAX_COLUMNS>
struct Topk {
  static constexpr int WARPS = THREADS / 32, SUBSETS = 8, BINS = 2048, CHUNK = 8, BATCH = 4, WORDS = MAX_COLUMNS / CHUNK / 32 + 1;
  static constexpr int PER_THREAD = BINS / THREADS;
  static constexpr int INFINITE = 0x7F80, NOTHING = -INFINITE, LEAST = NOTHING + 1;

  struct Shared {
    int bound_bins[BINS];
    int bins[BINS];
    uint32_t words[WORDS];  // one bit for each chunk of 8 columns that may hold a selected one
    uint16_t hot[THREADS * SUBSETS];  // subsets to be read again: thread * SUBSETS + subset
    int2 sums[WARPS];
    int num_hot;
    int most;
    int found;
    int above;
  };

  // A row, in chunks of 16 aligned bytes; the first may begin before it, the last may end behind what is visible.
  struct Row {
    const uint4* chunks;
    int offset;  // columns of the first chunk before the row
    int visible;
    int num_chunks;

    __device__ __forceinline__ Row(const TopkArguments& a, int row) {
      const __nv_bfloat16* first = a.scores + row * a.row_stride;
      offset = int(reinterpret_cast<uintptr_t>(first) % 16 / 2);
      chunks = reinterpret_cast<const uint4*>(first - offset);
      visible = min((a.visible[row] + a.per_entry - 1) / a.per_entry, a.columns);
      num_chunks = visible > 0 ? (visible + offset + CHUNK - 1) / CHUNK : 0;
    }

    // Whether the chunk has columns outside of the visible row.
    __device__ __forceinline__ bool is_at_end(int chunk) const {
      const int before = chunk * CHUNK - offset;
      return before < 0 || before + CHUNK > visible;
    }

    // The chunk, with negative infinity outside of the visible row.
    __device__ __forceinline__ uint4 load(int chunk) const {
      const int before = chunk * CHUNK - offset;
      if (!is_at_end(chunk)) return __ldg(chunks + chunk);
      const __nv_bfloat16* scores = reinterpret_cast<const __nv_bfloat16*>(chunks + chunk);
      uint32_t words[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const uint32_t low = is_visible(before + 2 * i) ? bits(scores[2 * i]) : 0xFF80u;
        const uint32_t high = is_visible(before + 2 * i + 1) ? bits(scores[2 * i + 1]) : 0xFF80u;
        words[i] = low | high << 16;
      }
      return {words[0], words[1], words[2], words[3]};
    }

    __device__ __forceinline__ bool is_visible(int column) const { return column >= 0 && column < visible; }
    static __device__ __forceinline__ uint32_t bits(__nv_bfloat16 score) { return __bfloat16_as_ushort(score); }
  };

  static __device__ __forceinline__ int ordered(uint32_t bits) {
    const int magnitude = bits & 0x7FFF;
    return bits & 0x8000 ? -magnitude : magnitude;
  }

  static __device__ __forceinline__ int score_of(const uint4& chunk, int i) {
    const uint32_t word = i < 2 ? chunk.x : i < 4 ? chunk.y : i < 6 ? chunk.z : chunk.w;
    return ordered(i % 2 ? word >> 16 : word & 0xFFFF);
  }

  static __device__ __forceinline__ uint32_t larger(uint32_t one, uint32_t other) {
    uint32_t result;
    asm("max.bf16x2 %0, %1, %2;" : "=r"(result) : "r"(one), "r"(other));
    return result;
  }

  static __device__ __forceinline__ int2 plus(int2 one, int2 other) { return {one.x + other.x, one.y + other.y}; }

  // Sum over all threads before this one, in the order of threads, and over all of them.
  static __device__ __forceinline__ int2 before(Shared& s, int2 value, int2& total) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int2 sum = value;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const int2 other = {__shfl_up_sync(~0u, sum.x, step), __shfl_up_sync(~0u, sum.y, step)};
      if (lane >= step) sum = plus(sum, other);
    }
    if (lane == 31) s.sums[warp] = sum;
    __syncthreads();
    int2 all = lane < WARPS ? s.sums[lane] : int2{0, 0};
#pragma unroll
    for (int step = 1; step < WARPS; step *= 2) {
      const int2 other = {__shfl_up_sync(~0u, all.x, step), __shfl_up_sync(~0u, all.y, step)};
      if (lane >= step) all = plus(all, other);
    }
    total = {__shfl_sync(~0u, all.x, WARPS - 1), __shfl_sync(~0u, all.y, WARPS - 1)};
    const int2 warps = {__shfl_sync(~0u, all.x, max(warp - 1, 0)), __shfl_sync(~0u, all.y, max(warp - 1, 0))};
    __syncthreads();
    return {sum.x - value.x + (warp ? warps.x : 0), sum.y - value.y + (warp ? warps.y : 0)};
  }

  // The bin that holds the rank-th largest of what was counted (from 1), and how many are in bins above; -1 if there
  // are fewer. Bins are counted from the top: bin 0 has the largest.
  static __device__ __forceinline__ int find(Shared& s, const int (&bins)[BINS], int rank, int& above) {
    if (threadIdx.x == 0) s.found = -1;
    int counts[PER_THREAD], sum = 0, total;
#pragma unroll
    for (int i = 0; i < PER_THREAD; ++i) sum += counts[i] = bins[threadIdx.x * PER_THREAD + i];
    int2 totals;
    int upto = before(s, {sum, 0}, totals).x;
    total = totals.x;
    if (upto < rank && upto + sum >= rank) {
#pragma unroll
      for (int i = 0; i < PER_THREAD; ++i) {
        if (upto < rank && upto + counts[i] >= rank) {
          s.found = threadIdx.x * PER_THREAD + i;
          s.above = upto;
        }
        upto += counts[i];
      }
    }
    __syncthreads();
    above = s.found < 0 ? total : s.above;
    return s.found;
  }

  static __device__ __forceinline__ int block_most(Shared& s, int value) {
    value = __reduce_max_sync(~0u, value);
    if (threadIdx.x % 32 == 0) atomicMax(&s.most, value);
    __syncthreads();
    return s.most;
  }

  // Chunk `turn` of a thread's subset: neighbouring threads have neighbouring chunks.
  static __device__ __forceinline__ int chunk_of(int thread, int subset, int turn, int run) {
    return (subset * run + turn) * THREADS + thread;
  }

  static __device__ __forceinline__ uint32_t larger(uint32_t best, const uint4& chunk) {
    return larger(best, larger(larger(chunk.x, chunk.y), larger(chunk.z, chunk.w)));
  }

  // The largest score of each of this thread's subsets of `run` chunks.
  static __device__ __forceinline__ void read_row(const Row& row, int run, int (&most)[SUBSETS]) {
    const int whole = (row.visible + row.offset) / CHUNK;
#pragma unroll
    for (int subset = 0; subset < SUBSETS; subset += 2) {
      uint32_t best[2] = {0xFF80FF80u, 0xFF80FF80u};
      for (int turn = 0; turn < run; turn += BATCH) {
        const int first = chunk_of(0, subset, turn, run), past = chunk_of(THREADS, subset + 1, turn + BATCH - 1, run);
        if (turn + BATCH <= run && past <= whole && (first > 0 || row.offset == 0)) {
          uint4 parts[2][BATCH];
#pragma unroll
          for (int i = 0; i < 2 * BATCH; ++i)
            parts[i / BATCH][i % BATCH] =
                __ldg(row.chunks + chunk_of(threadIdx.x, subset + i / BATCH, turn + i % BATCH, run));
#pragma unroll
          for (int i = 0; i < 2 * BATCH; ++i) best[i / BATCH] = larger(best[i / BATCH], parts[i / BATCH][i % BATCH]);
        } else {
          for (int i = turn; i < min(turn + BATCH, run); ++i) {
#pragma unroll
            for (int side = 0; side < 2; ++side) {
              const int chunk = chunk_of(threadIdx.x, subset + side, i, run);
              if (chunk < row.num_chunks) best[side] = larger(best[side], row.load(chunk));
            }
          }
        }
      }
#pragma unroll
      for (int side = 0; side < 2; ++side)
        most[subset + side] = max(ordered(best[side] & 0xFFFF), ordered(best[side] >> 16));
    }
  }

  // The largest finite score of this thread's subsets, some of which may hold infinity.
  static __device__ __forceinline__ int largest_finite(const Row& row, int run, const int (&most)[SUBSETS]) {
    int finite = NOTHING;
#pragma unroll
    for (int subset = 0; subset < SUBSETS; ++subset) {
      if (most[subset] < INFINITE) {
        finite = max(finite, most[subset]);
        continue;
      }
      for (int turn = 0; turn < run; ++turn) {
        const int chunk = chunk_of(threadIdx.x, subset, turn, run);
        if (chunk >= row.num_chunks) break;
        const uint4 part = row.load(chunk);
#pragma unroll
        for (int i = 0; i < CHUNK; ++i) {
          const int score = score_of(part, i);
          if (score < INFINITE) finite = max(finite, score);
        }
      }
    }
    return finite;
  }

  // List the subsets that may have scores from `least` on, in any order.
  static __device__ __forceinline__ void list_hot(Shared& s, const int (&most)[SUBSETS], int least) {
    const unsigned lower = (1u << threadIdx.x % 32) - 1;
    int place = 0, total = 0;
#pragma unroll
    for (int subset = 0; subset < SUBSETS; ++subset) {
      const unsigned hot = __ballot_sync(~0u, most[subset] >= least);
      total += __popc(hot);
    }
    if (threadIdx.x % 32 == 0) place = atomicAdd(&s.num_hot, total);
    place = __shfl_sync(~0u, place, 0);
#pragma unroll
    for (int subset = 0; subset < SUBSETS; ++subset) {
      const unsigned hot = __ballot_sync(~0u, most[subset] >= least);
      if (most[subset] >= least) s.hot[place + __popc(hot & lower)] = threadIdx.x * SUBSETS + subset;
      place += __popc(hot);
    }
  }

  // Count the scores from the bound on, one bin for each value from `top` down, and mark the chunks that have any.
  static __device__ __forceinline__ void count_hot(Shared& s, const Row& row, int run, int least, int top) {
    const int tasks = s.num_hot * run;
    for (int first = threadIdx.x; first < tasks; first += BATCH * THREADS) {
      int chunks[BATCH];
      uint4 parts[BATCH];
#pragma unroll
      for (int i = 0; i < BATCH; ++i) {
        const int task = first + i * THREADS, hot = task < tasks ? s.hot[task / run] : 0;
        const int chunk = chunk_of(hot / SUBSETS, hot % SUBSETS, task % run, run);
        chunks[i] = task < tasks && chunk < row.num_chunks ? chunk : -1;
        if (chunks[i] >= 0 && !row.is_at_end(chunk)) parts[i] = __ldg(row.chunks + chunk);
      }
#pragma unroll
      for (int i = 0; i < BATCH; ++i) {
        if (chunks[i] < 0) continue;
        if (row.is_at_end(chunks[i])) parts[i] = row.load(chunks[i]);
        if (count(s, parts[i], least, top, true)) atomicOr(&s.words[chunks[i] / 32], 1u << chunks[i] % 32);
      }
    }
  }

  // A bound below the k-th largest score: the k-th largest among the subsets' largest, or a little less.
  static __device__ __forceinline__ int bound(Shared& s, const int (&most)[SUBSETS], int top, int k) {
    // Bin 0 is for infinity, the last one for whatever is too far below.
#pragma unroll
    for (int i = 0; i < SUBSETS; ++i)
      if (most[i] >= LEAST) atomicAdd(&s.bound_bins[most[i] > top ? 0 : min(top - most[i] + 1, BINS - 1)], 1);
    __syncthreads();
    int above;
    const int bin = find(s, s.bound_bins, k, above);
    if (bin < 0 || bin == BINS - 1) return LEAST;
    return bin == 0 ? INFINITE : top - bin + 1;
  }

  static __device__ __forceinline__ void body(const TopkArguments& a, void* memory) {
    Shared& s = *reinterpret_cast<Shared*>(memory);
    const Row row(a, blockIdx.x);
    int* ids = a.ids + (long long)blockIdx.x * a.k;
    const int run = (row.num_chunks + THREADS * SUBSETS - 1) / (THREADS * SUBSETS);
    const int num_words = (row.num_chunks + 31) / 32;
    for (int i = threadIdx.x; i < BINS; i += THREADS) s.bins[i] = s.bound_bins[i] = 0;
    for (int i = threadIdx.x; i < num_words; i += THREADS) s.words[i] = 0;
    if (threadIdx.x == 0) {
      s.most = NOTHING;
      s.num_hot = 0;
    }
    int most[SUBSETS];
    read_row(row, run, most);
    __syncthreads();
    int top = block_most(s, largest_finite(row, run, most));
    const int least = bound(s, most, top, a.k);
    list_hot(s, most, least);
    __syncthreads();
    count_hot(s, row, run, least, top);
    __syncthreads();
    int above, rank = a.k;
    int bin = find(s, s.bins, rank, above);
    int last = bin == 0 ? INFINITE : top - bin + 1;  // the k-th largest score
    while (bin < 0 && top - BINS + 1 >= least) {  // it is further down than bins reach
      rank -= above;
      top = largest_below(s, row, top - BINS + 2, num_words);
      if (top < least) break;
      for (int i = threadIdx.x; i < BINS; i += THREADS) s.bins[i] = 0;
      __syncthreads();
      for (int word = threadIdx.x; word < num_words; word += THREADS)
        for (uint32_t left = s.words[word]; left; left &= left - 1)
          count(s, row.load(word * 32 + __ffs(left) - 1), least, top, false);
      __syncthreads();
      bin = find(s, s.bins, rank, above);
      last = top - bin + 1;
    }
    const int room = bin < 0 ? 0 : rank - above;  // for scores that equal the last one
    write(s, row, ids, a.k, bin < 0 ? LEAST - 1 : last, room, num_words);
  }

  // Count a chunk's scores from `least` to `top`, and those above it in the first bin; whether there were any.
  static __device__ __forceinline__ bool count(Shared& s, const uint4& chunk, int least, int top, bool has_infinity) {
    bool is_any = false;
#pragma unroll
    for (int i = 0; i < CHUNK; ++i) {
      const int score = score_of(chunk, i);
      if (score < least) continue;
      is_any = true;
      const int bin = score > top ? 0 : top - score + 1;
      if (bin < BINS && (bin > 0 || has_infinity)) atomicAdd(&s.bins[bin], 1);
    }
    return is_any;
  }

  static __device__ __forceinline__ int largest_below(Shared& s, const Row& row, int limit, int num_words) {
    int most = NOTHING;
    for (int word = threadIdx.x; word < num_words; word += THREADS) {
      for (uint32_t left = s.words[word]; left; left &= left - 1) {
        const uint4 chunk = row.load(word * 32 + __ffs(left) - 1);
#pragma unroll
        for (int i = 0; i < CHUNK; ++i) {
          const int score = score_of(chunk, i);
          if (score < limit) most = max(most, score);
        }
      }
    }
    if (threadIdx.x == 0) s.most = NOTHING;
    __syncthreads();
    return block_most(s, most);
  }

  // Bits of a chunk's scores above the last one, and of those that equal it.
  static __device__ __forceinline__ uint2 compare(const uint4& chunk, int last) {
    uint2 bits = {0, 0};
#pragma unroll
    for (int i = 0; i < CHUNK; ++i) {
      const int score = score_of(chunk, i);
      bits.x |= uint32_t(score > last) << i;
      bits.y |= uint32_t(score == last) << i;
    }
    return bits;
  }

  // Write the columns of all scores above the last one and of the first `room` that equal it, then -1.
  static __device__ __forceinline__ void write(Shared& s, const Row& row, int* ids, int k, int last, int room,
                                               int num_words) {
    int2 done = {0, 0};
    for (int first = 0; first < num_words; first += THREADS) {
      const int word = first + threadIdx.x;
      const uint32_t hot = word < num_words ? s.words[word] : 0;
      int2 own = {0, 0}, total;
      for (uint32_t left = hot; left; left &= left - 1) {
        const uint2 bits = compare(row.load(word * 32 + __ffs(left) - 1), last);
        own = plus(own, {__popc(bits.x), __popc(bits.y)});
      }
      int2 at = plus(done, before(s, own, total));
      done = plus(done, total);
      if (own.x + own.y == 0) continue;
      for (uint32_t left = hot; left; left &= left - 1) {
        const int chunk = word * 32 + __ffs(left) - 1;
        const uint2 bits = compare(row.load(chunk), last);
        for (uint32_t some = bits.x | bits.y; some; some &= some - 1) {
          const int i = __ffs(some) - 1;
          const bool is_above = bits.x >> i & 1;
          if (is_above || at.y < room) ids[at.x + min(at.y, room)] = chunk * CHUNK + i - row.offset;
          (is_above ? at.x : at.y) += 1;
        }
      }
    }
    const int written = done.x + min(done.y, room);
    for (int i = written + threadIdx.x; i < k; i += THREADS) ids[i] = -1;
  }
};

}  // namespace thalweg
