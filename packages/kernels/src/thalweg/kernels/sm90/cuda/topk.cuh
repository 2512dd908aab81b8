// The k largest of a row of bfloat16 scores: their columns ascending, lower columns first among equal scores.
//
// One block takes a row. It reads the row once and keeps the largest score of each of some thousand subsets. The k-th
// largest of those is a bound below the k-th largest score of all, and little more than k scores reach it. Chunks of 8
// columns whose largest one does, which is known from the first reading, are read again, out of the L2 cache, and kept.
// A histogram with one bin for each score gives the k-th largest itself; where its bins do not reach far enough, one of
// all scores says where to look. A bitmap of the kept chunks gives the place of each in the order of columns, and sums
// of what each has give the places of what is written.
// Where the bound says too little to keep what reaches it, as among equal scores, chunks are read again in every step.
//
// Scores are compared as integers, magnitudes that are negative for negative scores, so that both zeros are equal.
#pragma once
#include "topk_marked.cuh"

namespace thalweg {

// AHEAD: flights of loads that a thread waits for at a time.
template <int THREADS, int MAX_COLUMNS, int KEPT, int AHEAD>
struct Topk : TopkMarked<THREADS, MAX_COLUMNS, KEPT> {
  using Block = TopkBlock<THREADS, MAX_COLUMNS, KEPT>;
  using typename Block::Last;
  using typename Block::Range;
  using typename Block::Shared;
  using Block::BATCH, Block::before, Block::BINS, Block::count, Block::find, Block::find_last, Block::FLIGHT;
  using Block::GROUP_BITS, Block::GROUPS, Block::HOT, Block::largest, Block::selected, Block::write;
  using TopkMarked<THREADS, MAX_COLUMNS, KEPT>::select_marked;

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

  static __device__ __forceinline__ void load_flight(const TopkRow& row, int flight, uint4 (&parts)[FLIGHT]) {
#pragma unroll
    for (int i = 0; i < FLIGHT; ++i)
      parts[i] = __ldg(row.chunks + max(row.first, min(chunk_of(threadIdx.x, flight, i), row.past - 1)));
  }

  // The largest scores of a flight's groups, and those of all flights.
  static __device__ __forceinline__ void note_flight(Shared& s, int flight, int shift, const uint32_t (&words)[FLIGHT],
                                                     uint32_t (&best)[FLIGHT]) {
    uint32_t pairs[FLIGHT / 2];
#pragma unroll
    for (int i = 0; i < FLIGHT / 2; ++i) pairs[i] = larger_halves(words[2 * i], words[2 * i + 1]);
#pragma unroll
    for (int i = 0; i < FLIGHT; ++i) best[i] = larger(best[i], words[i]);
    const int place = flight * THREADS + threadIdx.x;
    if (shift == 0) {
      s.largest_of_flight[place] = {pairs[0], pairs[1], pairs[2], pairs[3]};
    } else {
      const uint32_t all = larger({pairs[0], pairs[1], pairs[2], pairs[3]});
      s.largest[place] = larger_halves(all, all);
    }
  }

  // Note the largest score of each group. Of each place in a flight, the largest of all flights.
  static __device__ __forceinline__ void read_row(Shared& s, const TopkRow& row, int flights, int shift,
                                                  uint32_t (&best)[FLIGHT]) {
    uint4 parts[AHEAD][FLIGHT];
#pragma unroll
    for (int j = 0; j < AHEAD; ++j)
      if (j < flights) load_flight(row, j, parts[j]);
#pragma unroll
    for (int i = 0; i < FLIGHT; ++i) best[i] = 0xFF80FF80u;
#pragma unroll 1
    for (int start = 0; start < flights; start += AHEAD) {
#pragma unroll
      for (int j = 0; j < AHEAD; ++j) {
        const int flight = start + j;
        if (flight >= flights) break;
        uint32_t words[FLIGHT];
#pragma unroll
        for (int i = 0; i < FLIGHT; ++i)
          words[i] = row.is_between(chunk_of(threadIdx.x, flight, i)) ? larger(parts[j][i]) : 0xFF80FF80u;
        if (flight + AHEAD < flights) load_flight(row, flight + AHEAD, parts[j]);
        note_flight(s, flight, shift, words, best);
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
    if (threadIdx.x < 2 && row.edge(threadIdx.x) >= 0)
      most = max(most, largest_finite(row.load(row.edge(threadIdx.x))));
    return most;
  }

  // Count a largest score among those that give the bound. The first bin is for infinity, the last one for whatever is
  // too far below.
  static __device__ __forceinline__ void count_largest(Shared& s, uint32_t bits, int top) {
    const int most = ordered(bits & 0xFFFF);
    if (most >= LEAST) atomicAdd(&s.bound_bins[most > top ? 0 : min(top - most + 1, BINS - 1)], 1);
  }

  // A bound below the k-th largest score: the k-th largest in `best` of all threads, if it is in reach of bins. Halves
  // of chunks are told apart only where k is so large that little would be left out else.
  static __device__ __forceinline__ int bound(Shared& s, const uint32_t (&best)[FLIGHT], int top, int k, int chunks) {
    if (2 * k > min(chunks, FLIGHT * THREADS)) {
#pragma unroll 1
      for (int half = 0; half < 2; ++half)
#pragma unroll
        for (int i = 0; i < FLIGHT; ++i) count_largest(s, best[i] >> 16 * half, top);
    } else {
#pragma unroll
      for (int i = 0; i < FLIGHT; ++i) count_largest(s, larger_halves(best[i], best[i]), top);
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

  // Read hot groups and edges again, mark their chunks that have scores from `least` on, keep those that find room.
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

  static __device__ __forceinline__ void body(const TopkArguments& a, void* memory) {
    Shared& s = *reinterpret_cast<Shared*>(memory);
    const TopkRow row(a, blockIdx.x);
    reinterpret_cast<int4*>(s.bins)[threadIdx.x] = reinterpret_cast<int4*>(s.bound_bins)[threadIdx.x] = {0, 0, 0, 0};
    if (threadIdx.x == 0) {
      s.num_hot = s.num_kept = 0;
      s.found[0] = s.found[1] = -1;
    }
    int* ids = a.ids + (long long)blockIdx.x * a.k;
    const int flights = row.past > row.first ? (row.past + FLIGHT * THREADS - 1) / (FLIGHT * THREADS) : 0;
    const int shift = flights * FLIGHT * THREADS > GROUPS ? GROUP_BITS : 0, num_words = (row.num_chunks + 31) / 32;
#pragma unroll 1
    for (int i = threadIdx.x; i < num_words; i += THREADS) s.words[i] = 0;
    uint32_t best[FLIGHT];
    read_row(s, row, flights, shift, best);
    uint32_t most = best[0];
#pragma unroll
    for (int i = 1; i < FLIGHT; ++i) most = larger(most, best[i]);
    const int top = largest(s, largest_finite(row, flights, most));
    const int least = bound(s, best, top, a.k, row.num_chunks);
    list_hot(s, flights, shift, least);
    __syncthreads();
    if (s.num_hot > HOT) mark_all(s, row, num_words);
    else keep_hot(s, row, shift, least);
    __syncthreads();
    if (s.num_hot > HOT || s.num_kept > KEPT) select_marked(s, row, ids, a.k, least, top, num_words);
    else select_kept(s, row, ids, a.k, least, top, num_words);
  }

  // Select among chunks that were kept.
  static __device__ __forceinline__ void select_kept(Shared& s, const TopkRow& row, int* ids, int k, int least, int top,
                                                     int num_words) {
    const int kept = s.num_kept, own_words = (num_words + THREADS - 1) / THREADS;
    int marked = 0, marked_before;
#pragma unroll 1
    for (int i = 0; i < own_words; ++i) {
      const int word = threadIdx.x * own_words + i;
      if (word < num_words) marked += __popc(s.words[word]);
    }
    const Last last = find_last(s, k, least, top, row.visible <= k, marked, marked_before, [&](const Range& range) {
#pragma unroll 1
      for (int i = threadIdx.x; i < kept; i += THREADS) count(s, s.parts[i], range);
    });
#pragma unroll 1
    for (int i = 0; i < own_words; ++i) {
      const int word = threadIdx.x * own_words + i;
      if (word >= num_words) break;
      s.words_before[word] = marked_before;
      marked_before += __popc(s.words[word]);
    }
    __syncthreads();
#pragma unroll 1
    for (int i = threadIdx.x; i < kept; i += THREADS) {
      const int chunk = s.chunks[i], word = chunk / 32;
      const int rank = s.words_before[word] + __popc(s.words[word] & ((1u << chunk % 32) - 1));
      const uint2 bits = selected(s.parts[i], last.score);
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
      write(row, ids, s.ordered_chunks[i], {bits & 0xFF, bits >> 8}, at, last.room);
    }
    for (int i = total.x + min(total.y, last.room) + threadIdx.x; i < k; i += THREADS) ids[i] = -1;
  }
};

}  // namespace thalweg
