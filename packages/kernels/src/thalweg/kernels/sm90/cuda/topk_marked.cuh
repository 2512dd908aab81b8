// Selecting from chunks of a row that are only marked, as there are too many to keep: they are read in every step.
#pragma once
#include "topk_block.cuh"

namespace thalweg {

template <int THREADS, int MAX_COLUMNS, int KEPT>
struct TopkMarked : TopkBlock<THREADS, MAX_COLUMNS, KEPT> {
  using Block = TopkBlock<THREADS, MAX_COLUMNS, KEPT>;
  using typename Block::Last;
  using typename Block::Range;
  using typename Block::Shared;
  using Block::before, Block::count, Block::find_last, Block::selected, Block::write;

  // Select among all chunks that are marked, reading them again in every step.
  static __device__ __noinline__ void select_marked(Shared& s, const TopkRow& row, int* ids, int k, int least, int top,
                                                    int num_words) {
    int unused;
    const Last last = find_last(s, k, least, top, row.visible <= k, 0, unused, [&](const Range& range) {
      for (int word = threadIdx.x; word < num_words; word += THREADS)
        for (uint32_t left = s.words[word]; left; left &= left - 1)
          count(s, row.load(word * 32 + __ffs(left) - 1), range);
    });
    write_marked(s, row, ids, k, last.score, last.room, num_words);
  }

  static __device__ __forceinline__ void write_marked(Shared& s, const TopkRow& row, int* ids, int k, int last,
                                                      int room, int num_words) {
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
