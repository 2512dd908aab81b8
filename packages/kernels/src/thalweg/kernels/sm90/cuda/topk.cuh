// The k largest of a row of bfloat16 scores: their columns ascending, lower columns first among equal scores.
//
// One block takes a row. It reads the row once and keeps the largest score of each of some thousand subsets. The k-th
// largest of those is a bound below the k-th largest score of all, and little more than k scores reach it. Subsets whose
// largest one does are read again, out of the L2 cache, and their chunks of 8 columns that have such scores are kept. A
// histogram with one bin for each score gives the k-th largest itself. A bitmap of the chunks that were kept gives the
// place of each in the order of columns, and sums of what each has give the places of what is written.
// Where the bound says too little to keep what reaches it, as among equal scores, chunks are read again in every step.
//
// Scores are compared as integers, magnitudes that are negative for negative scores, so that both zeros are equal.
#pragma once
#include <cuda_bf16.h>
#include <cstdint>

namespace thalweg {

struct TopkArguments {
  const __nv_bfloat16* scores;
  const int* visible;
  int* ids;  // [rows, k]
  long long row_stride;
  int columns;
  int k;
  int per_entry;  // visible counts so many times finer than columns
};

constexpr int CHUNK = 8;
constexpr int INFINITE = 0x7F80, NOTHING = -INFINITE, LEAST = NOTHING + 1;

__device__ __forceinline__ int ordered(uint32_t bits) {
  const int magnitude = bits & 0x7FFF;
  return bits & 0x8000 ? -magnitude : magnitude;
}

// A pair of the bfloat16 that `ordered` maps to this.
__device__ __forceinline__ __nv_bfloat162 score_pair(int value) {
  const __nv_bfloat16 score = __ushort_as_bfloat16(value < 0 ? 0x8000 | -value : value);
  return {score, score};
}

__device__ __forceinline__ __nv_bfloat162 as_pair(uint32_t bits) { return *reinterpret_cast<__nv_bfloat162*>(&bits); }

// One bit for each of the 8 scores, from all ones or zeros in halves of words.
__device__ __forceinline__ uint32_t bits_of(uint32_t first, uint32_t second, uint32_t third, uint32_t fourth) {
  const uint32_t bits =
      (first & 0x00010001u) | (second & 0x00040004u) | (third & 0x00100010u) | (fourth & 0x00400040u);
  return (bits | bits >> 15) & 0xFFu;
}

__device__ __forceinline__ uint32_t at_least(const uint4& chunk, __nv_bfloat162 least) {
  return bits_of(__hge2_mask(as_pair(chunk.x), least), __hge2_mask(as_pair(chunk.y), least),
                 __hge2_mask(as_pair(chunk.z), least), __hge2_mask(as_pair(chunk.w), least));
}

__device__ __forceinline__ uint32_t above(const uint4& chunk, __nv_bfloat162 last) {
  return bits_of(__hgt2_mask(as_pair(chunk.x), last), __hgt2_mask(as_pair(chunk.y), last),
                 __hgt2_mask(as_pair(chunk.z), last), __hgt2_mask(as_pair(chunk.w), last));
}

__device__ __forceinline__ uint32_t larger(uint32_t one, uint32_t other) {
  uint32_t result;
  asm("max.bf16x2 %0, %1, %2;" : "=r"(result) : "r"(one), "r"(other));
  return result;
}

__device__ __forceinline__ uint32_t larger(const uint4& words) {
  return larger(larger(words.x, words.y), larger(words.z, words.w));
}

__device__ __forceinline__ int score_of(const uint4& chunk, int i) {
  const uint32_t word = i < 4 ? (i < 2 ? chunk.x : chunk.y) : (i < 6 ? chunk.z : chunk.w);
  return ordered(i % 2 ? word >> 16 : word & 0xFFFF);
}

// What is visible of a row, in chunks of 16 aligned bytes. The first may begin before it, the last may end behind it;
// those are edges, which are never taken as they are.
struct TopkRow {
  const uint4* chunks;
  int offset;  // columns of the first chunk before the row
  int visible;
  int num_chunks;
  int first;  // of the chunks between the edges
  int past;

  __device__ __forceinline__ TopkRow(const TopkArguments& a, int row) {
    const __nv_bfloat16* scores = a.scores + row * a.row_stride;
    offset = int(reinterpret_cast<uintptr_t>(scores) % 16 / 2);
    chunks = reinterpret_cast<const uint4*>(scores - offset);
    visible = max(0, min((a.visible[row] + a.per_entry - 1) / a.per_entry, a.columns));
    num_chunks = visible > 0 ? (visible + offset + CHUNK - 1) / CHUNK : 0;
    first = offset > 0;
    past = max(first, (visible + offset) / CHUNK);
    if (visible == 0) past = first;
  }

  __device__ __forceinline__ bool is_between(int chunk) const { return chunk >= first && chunk < past; }

  // The two edges by number, -1 where there is none.
  __device__ __forceinline__ int edge(int which) const {
    if (which == 0) return first > 0 && num_chunks > 0 ? 0 : -1;
    return num_chunks > max(past, first) ? num_chunks - 1 : -1;
  }

  // A chunk, with negative infinity outside of what is visible.
  __device__ __forceinline__ uint4 load(int chunk) const {
    uint4 part = __ldg(chunks + chunk);
    if (!is_between(chunk)) {
      const int from = chunk == 0 ? offset : 0, to = min(visible + offset - chunk * CHUNK, CHUNK);
      part = {hidden(part.x, 0, from, to), hidden(part.y, 2, from, to), hidden(part.z, 4, from, to),
              hidden(part.w, 6, from, to)};
    }
    return part;
  }

  static __device__ __forceinline__ uint32_t hidden(uint32_t word, int place, int from, int to) {
    const uint32_t low = place >= from && place < to ? word & 0xFFFFu : 0xFF80u;
    return low | (place + 1 >= from && place + 1 < to ? word & 0xFFFF0000u : 0xFF800000u);
  }
};

// THREADS of a block; MAX_COLUMNS that a row may have; KEPT chunks at most.
template <int THREADS, int MAX_COLUMNS, int KEPT>
struct Topk {
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

  // Both larger halves of two words, as one word.
  static __device__ __forceinline__ uint32_t larger_halves(uint32_t one, uint32_t other) {
    return larger(__byte_perm(one, other, 0x5410), __byte_perm(one, other, 0x7632));
  }

  // Chunk of a thread's flight: neighbouring threads have neighbouring chunks.
  static __device__ __forceinline__ int chunk_of(int thread, int flight, int i) {
    return (flight * FLIGHT + i) * THREADS + thread;
  }

  // Chunk `turn` of a group of 2^shift.
  static __device__ __forceinline__ int chunk_of_group(int group, int turn, int shift) {
    if (shift > 0) return chunk_of(group % THREADS, group / THREADS, turn);
    return chunk_of(group / FLIGHT % THREADS, group / FLIGHT / THREADS, group % FLIGHT);
  }

  // Note the largest score of each group. Of each place in a flight, the largest of all flights.
  static __device__ __forceinline__ void read_row(Shared& s, const TopkRow& row, int flights, int shift,
                                                  uint32_t (&best)[FLIGHT / 2]) {
#pragma unroll
    for (int i = 0; i < FLIGHT / 2; ++i) best[i] = 0xFF80FF80u;
#pragma unroll 1
    for (int flight = 0; flight < flights; ++flight) {
      uint4 parts[FLIGHT];
#pragma unroll
      for (int i = 0; i < FLIGHT; ++i)
        parts[i] = __ldg(row.chunks + max(row.first, min(chunk_of(threadIdx.x, flight, i), row.past - 1)));
      uint32_t words[FLIGHT];
#pragma unroll
      for (int i = 0; i < FLIGHT; ++i)
        words[i] = row.is_between(chunk_of(threadIdx.x, flight, i)) ? larger(parts[i]) : 0xFF80FF80u;
      uint32_t pairs[FLIGHT / 2];
#pragma unroll
      for (int i = 0; i < FLIGHT / 2; ++i) {
        pairs[i] = larger_halves(words[2 * i], words[2 * i + 1]);
        best[i] = larger(best[i], pairs[i]);
      }
      const int place = flight * THREADS + threadIdx.x;
      if (shift == 0) {
        s.largest_of_flight[place] = {pairs[0], pairs[1], pairs[2], pairs[3]};
      } else {
        const uint32_t all = larger({pairs[0], pairs[1], pairs[2], pairs[3]});
        s.largest[place] = larger_halves(all, all);
      }
    }
  }

  // The largest finite score of a chunk.
  static __device__ __forceinline__ int largest_finite(const uint4& part) {
    int most = NOTHING;
#pragma unroll 1
    for (int i = 0; i < CHUNK; ++i) {
      const int score = score_of(part, i);
      if (score < INFINITE) most = max(most, score);
    }
    return most;
  }

  // The largest finite score that this thread has read, and those of the edges.
  static __device__ __forceinline__ int largest_finite(const TopkRow& row, int flights, uint32_t best) {
    int most = max(ordered(best & 0xFFFF), ordered(best >> 16));
    if (most == INFINITE) {
      most = NOTHING;
#pragma unroll 1
      for (int i = 0; i < flights * FLIGHT; ++i) {
        const int chunk = chunk_of(threadIdx.x, 0, i);
        if (row.is_between(chunk)) most = max(most, largest_finite(row.load(chunk)));
      }
    }
    if (threadIdx.x < 2 && row.edge(threadIdx.x) >= 0) most = max(most, largest_finite(row.load(row.edge(threadIdx.x))));
    return most;
  }

  // A bound below the k-th largest score: the k-th largest in `best` of all threads, if it is in reach of bins.
  static __device__ __forceinline__ int bound(Shared& s, const uint32_t (&best)[FLIGHT / 2], int top, int k) {
    // The first bin is for infinity, the last one for whatever is too far below.
#pragma unroll
    for (int i = 0; i < FLIGHT; ++i) {
      const int most = ordered(i % 2 ? best[i / 2] >> 16 : best[i / 2] & 0xFFFF);
      if (most >= LEAST) atomicAdd(&s.bound_bins[most > top ? 0 : min(top - most + 1, BINS - 1)], 1);
    }
    __syncthreads();
    int unused;
    const int bin = find(s, 0, s.bound_bins, k, 0, unused).bin;
    if (bin < 0 || bin == BINS - 1) return LEAST;
    return bin == 0 ? INFINITE : top - bin + 1;
  }

  // List the groups that have scores from `least` on, in any order.
  static __device__ __forceinline__ void list_hot(Shared& s, int flights, int shift, int least) {
    const __nv_bfloat162 bound = score_pair(least);
    uint32_t hot = 0;  // a bit for each of the thread's groups
#pragma unroll 1
    for (int flight = 0; flight < flights; ++flight) {
      const int place = flight * THREADS + threadIdx.x;
      if (shift == 0) hot |= at_least(s.largest_of_flight[place], bound) << flight * FLIGHT;
      else hot |= uint32_t(__hge(__ushort_as_bfloat16(s.largest[place]), bound.x)) << flight;
    }
    const int count = __popc(hot), lane = threadIdx.x % 32;
    int upto = count, place = 0;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const int other = __shfl_up_sync(~0u, upto, step);
      if (lane >= step) upto += other;
    }
    if (lane == 31) place = atomicAdd(&s.num_hot, upto);
    place = __shfl_sync(~0u, place, 31) + upto - count;
#pragma unroll 1
    for (; hot && place < HOT; hot &= hot - 1) {
      const int bit = __ffs(hot) - 1;
      s.hot[place++] = shift == 0 ? (bit / FLIGHT * THREADS + threadIdx.x) * FLIGHT + bit % FLIGHT
                                  : bit * THREADS + threadIdx.x;
    }
  }

  // Read hot groups and edges again, mark their chunks that have scores from `least` on, and keep them, if there is room.
  static __device__ __forceinline__ void keep_hot(Shared& s, const TopkRow& row, int shift, int least) {
    const unsigned lower = (1u << threadIdx.x % 32) - 1;
    const __nv_bfloat162 bound = score_pair(least);
    const int tasks = s.num_hot << shift;
#pragma unroll 1
    for (int start = 0; start < tasks + 2; start += BATCH * THREADS) {
      int chunks[BATCH], place = 0, total = 0;
      unsigned kept[BATCH];
      uint4 parts[BATCH];
#pragma unroll
      for (int i = 0; i < BATCH; ++i) {
        const int task = start + i * THREADS + threadIdx.x;
        chunks[i] = -1;
        if (task < tasks) chunks[i] = chunk_of_group(s.hot[task >> shift], task & ((1 << shift) - 1), shift);
        else if (task < tasks + 2) chunks[i] = row.edge(task - tasks);
        if (chunks[i] >= row.num_chunks || (task < tasks && !row.is_between(chunks[i]))) chunks[i] = -1;
        parts[i] = __ldg(row.chunks + max(chunks[i], 0));
      }
#pragma unroll
      for (int i = 0; i < BATCH; ++i) {
        if (chunks[i] >= 0 && !row.is_between(chunks[i])) parts[i] = row.load(chunks[i]);
        if (chunks[i] >= 0 && at_least(parts[i], bound) == 0) chunks[i] = -1;
        kept[i] = __ballot_sync(~0u, chunks[i] >= 0);
        total += __popc(kept[i]);
      }
      if (total == 0) continue;
      if (threadIdx.x % 32 == 0) place = atomicAdd(&s.num_kept, total);
      place = __shfl_sync(~0u, place, 0);
#pragma unroll
      for (int i = 0; i < BATCH; ++i) {
        const int own = place + __popc(kept[i] & lower);
        place += __popc(kept[i]);
        if (chunks[i] < 0) continue;
        atomicOr(&s.words[chunks[i] / 32], 1u << chunks[i] % 32);
        if (own >= KEPT) continue;
        s.parts[own] = parts[i];
        s.chunks[own] = chunks[i];
      }
    }
  }

  static __device__ __forceinline__ void mark_all(Shared& s, const TopkRow& row, int num_words) {
    for (int i = threadIdx.x; i < num_words; i += THREADS) {
      const int chunks = row.num_chunks - i * 32;
      s.words[i] = chunks >= 32 ? ~0u : (1u << chunks) - 1;
    }
  }

  // Count a chunk's scores from `least` to `top`, and those above it in the first bin if that is wanted.
  static __device__ __forceinline__ void count(Shared& s, const uint4& chunk, int least, int top, bool has_above) {
#pragma unroll 1
    for (uint32_t left = at_least(chunk, score_pair(least)); left; left &= left - 1) {
      const int score = score_of(chunk, __ffs(left) - 1), bin = score > top ? 0 : top - score + 1;
      if (bin < BINS && (bin > 0 || has_above)) atomicAdd(&s.bins[bin], 1);
    }
  }

  // Scores of a chunk that are written: all bits of .x, and the first of .y as long as there is room.
  static __device__ __forceinline__ uint2 selected(const uint4& chunk, int last) {
    const __nv_bfloat162 pair = score_pair(last);
    const uint32_t larger = above(chunk, pair);
    return {larger, at_least(chunk, pair) & ~larger};
  }

  static __device__ __forceinline__ void write(const TopkRow& row, int* ids, int chunk, uint2 bits, int2& at, int room) {
#pragma unroll 1
    for (uint32_t some = bits.x | bits.y; some; some &= some - 1) {
      const int i = __ffs(some) - 1;
      const bool is_above = bits.x >> i & 1;
      if (is_above || at.y < room) ids[at.x + min(at.y, room)] = chunk * CHUNK + i - row.offset;
      (is_above ? at.x : at.y) += 1;
    }
  }

  static __device__ __forceinline__ void body(const TopkArguments& a, void* memory) {
    Shared& s = *reinterpret_cast<Shared*>(memory);
    const TopkRow row(a, blockIdx.x);
    int* ids = a.ids + (long long)blockIdx.x * a.k;
    const int flights = row.past > row.first ? (row.past + FLIGHT * THREADS - 1) / (FLIGHT * THREADS) : 0;
    const int shift = flights * FLIGHT * THREADS > GROUPS ? GROUP_BITS : 0, num_words = (row.num_chunks + 31) / 32;
    reinterpret_cast<int4*>(s.bins)[threadIdx.x] = reinterpret_cast<int4*>(s.bound_bins)[threadIdx.x] = {0, 0, 0, 0};
#pragma unroll 1
    for (int i = threadIdx.x; i < num_words; i += THREADS) s.words[i] = 0;
    if (threadIdx.x == 0) {
      s.num_hot = s.num_kept = 0;
      s.found[0] = s.found[1] = -1;
    }
    uint32_t best[FLIGHT / 2];
    read_row(s, row, flights, shift, best);
    const int top = largest(s, largest_finite(row, flights, larger({best[0], best[1], best[2], best[3]})));
    const int least = bound(s, best, top, a.k);
    list_hot(s, flights, shift, least);
    __syncthreads();
    if (s.num_hot > HOT) mark_all(s, row, num_words);
    else keep_hot(s, row, shift, least);
    __syncthreads();
    if (s.num_hot > HOT || s.num_kept > KEPT || !select_kept(s, row, ids, a.k, least, top, num_words))
      select_marked(s, row, ids, a.k, least, top, num_words);
  }

  // Select among chunks that were kept; whether the last score is in reach of bins.
  static __device__ __forceinline__ bool select_kept(Shared& s, const TopkRow& row, int* ids, int k, int least, int top,
                                                     int num_words) {
    const int kept = s.num_kept, own_words = (num_words + THREADS - 1) / THREADS;
#pragma unroll 1
    for (int i = threadIdx.x; i < kept; i += THREADS) count(s, s.parts[i], least, top, true);
    int marked = 0, marked_before;
#pragma unroll 1
    for (int i = 0; i < own_words; ++i) {
      const int word = threadIdx.x * own_words + i;
      if (word < num_words) marked += __popc(s.words[word]);
    }
    __syncthreads();
    const Place place = find(s, 1, s.bins, k, marked, marked_before);
    if (place.bin < 0 && top - BINS + 1 >= least) return false;
#pragma unroll 1
    for (int i = 0; i < own_words; ++i) {
      const int word = threadIdx.x * own_words + i;
      if (word >= num_words) break;
      s.words_before[word] = marked_before;
      marked_before += __popc(s.words[word]);
    }
    __syncthreads();
    const int last = place.bin < 0 ? least : place.bin == 0 ? INFINITE : top - place.bin + 1;
    const int room = place.bin < 0 ? k : k - place.above;  // for scores that equal the last one
#pragma unroll 1
    for (int i = threadIdx.x; i < kept; i += THREADS) {
      const int chunk = s.chunks[i], word = chunk / 32;
      const int rank = s.words_before[word] + __popc(s.words[word] & ((1u << chunk % 32) - 1));
      const uint2 bits = selected(s.parts[i], last);
      s.ordered_chunks[rank] = chunk;
      s.ordered_bits[rank] = bits.x | bits.y << 8;
    }
    __syncthreads();
    const int own_chunks = (kept + THREADS - 1) / THREADS, first = threadIdx.x * own_chunks;
    int2 sum = {0, 0}, total;
#pragma unroll 1
    for (int i = first; i < min(first + own_chunks, kept); ++i) {
      const uint32_t bits = s.ordered_bits[i];
      sum = {sum.x + __popc(bits & 0xFF), sum.y + __popc(bits >> 8)};
    }
    int2 at = before(s, 0, sum, total);
#pragma unroll 1
    for (int i = first; i < min(first + own_chunks, kept); ++i) {
      const uint32_t bits = s.ordered_bits[i];
      write(row, ids, s.ordered_chunks[i], {bits & 0xFF, bits >> 8}, at, room);
    }
    for (int i = total.x + min(total.y, room) + threadIdx.x; i < k; i += THREADS) ids[i] = -1;
    return true;
  }

  // Select among all chunks that are marked, reading them again in every step.
  static __device__ __noinline__ void select_marked(Shared& s, const TopkRow& row, int* ids, int k, int least, int top,
                                                    int num_words) {
    int rank = k, last = least, room = k;
    for (bool is_first = true; top >= least; is_first = false) {
      __syncthreads();
      for (int i = threadIdx.x; i < BINS; i += THREADS) s.bins[i] = 0;
      if (threadIdx.x == 0) s.found[1] = -1;
      __syncthreads();
      for (int word = threadIdx.x; word < num_words; word += THREADS)
        for (uint32_t left = s.words[word]; left; left &= left - 1)
          count(s, row.load(word * 32 + __ffs(left) - 1), least, top, is_first);
      __syncthreads();
      int unused;
      const Place place = find(s, 1, s.bins, rank, 0, unused);
      if (place.bin >= 0) {
        last = place.bin == 0 ? INFINITE : top - place.bin + 1;
        room = rank - place.above;
        break;
      }
      rank -= place.above;
      top = largest_below(s, row, top - BINS + 2, num_words);
    }
    write_marked(s, row, ids, k, last, room, num_words);
  }

  static __device__ __forceinline__ int largest_below(Shared& s, const TopkRow& row, int limit, int num_words) {
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
    return largest(s, most);
  }

  static __device__ __forceinline__ void write_marked(Shared& s, const TopkRow& row, int* ids, int k, int last, int room,
                                                      int num_words) {
    int2 done = {0, 0};
    for (int first = 0; first < num_words; first += THREADS) {
      const int word = first + threadIdx.x;
      const uint32_t marked = word < num_words ? s.words[word] : 0;
      int2 own = {0, 0}, total;
      for (uint32_t left = marked; left; left &= left - 1) {
        const uint2 bits = selected(row.load(word * 32 + __ffs(left) - 1), last);
        own = {own.x + __popc(bits.x), own.y + __popc(bits.y)};
      }
      __syncthreads();
      const int2 sum = before(s, 0, own, total);
      int2 at = {done.x + sum.x, done.y + sum.y};
      done = {done.x + total.x, done.y + total.y};
      if (own.x + own.y == 0) continue;
      for (uint32_t left = marked; left; left &= left - 1) {
        const int chunk = word * 32 + __ffs(left) - 1;
        write(row, ids, chunk, selected(row.load(chunk), last), at, room);
      }
    }
    for (int i = done.x + min(done.y, room) + threadIdx.x; i < k; i += THREADS) ids[i] = -1;
  }
};

}  // namespace thalweg
