// How the tiles of all rows are shared out among blocks, and how a block lays them out in its memory.
#pragma once
#include "mxfp4_scores.cuh"
#include <cstddef>

namespace thalweg {

struct ScoreArguments {
  const uint8_t* q;
  const uint8_t* q_scales;
  const __nv_bfloat16* head_weights;
  const uint8_t* keys;        // pages, or rows of codes
  const uint8_t* key_scales;  // of rows
  const int* tables;          // [rows, table_width]
  const int* begin;           // [rows], of rows
  const int* end;             // [rows]; of pages: visible entries
  const int* blocks;          // [rows, listed]
  __nv_bfloat16* scores;      // [rows, width]
  uint32_t page_stride;
  long long num_keys;         // of rows
  int num_rows;
  int table_width;
  int listed;
  int width;
  int score_stride;
};

// HEADS x DIM queries; ENTRIES of a page, 0: keys in rows; BLOCK entries of a listed block, 0: all keys; ROWS at a
// time; N heads in a product; STAGES tiles in memory, of which one is read.
template <int HEADS_, int DIM_, int ENTRIES_, int BLOCK_, int ROWS_, int N_, int STAGES_>
struct ScorePlan {
  static constexpr int HEADS = HEADS_, DIM = DIM_, ENTRIES = ENTRIES_, BLOCK = BLOCK_, ROWS = ROWS_, N = N_;
  static constexpr int STAGES = STAGES_, GROUPS = DIM / 32, KEY_BYTES = DIM / 2, WARPS = THREADS / 32;
  static constexpr bool IS_PAGED = ENTRIES > 0, IS_LISTED = BLOCK > 0;
  static constexpr int DATA_BYTES = TILE * KEY_BYTES, STAGE_BYTES = DATA_BYTES + TILE * GROUPS;
  using Query = QueryRow<HEADS, DIM>;

  struct Shared {
    Query queries[ROWS];
    alignas(128) uint8_t stages[STAGES][STAGE_BYTES];  // keys, each in 16-byte chunks, then their scales
    long long sums[WARPS];
    int lengths[ROWS];
    int first_row;
    int first_tile;
  };
  static_assert(STAGE_BYTES % 128 == 0);
  static constexpr uint32_t STAGES_AT = offsetof(Shared, stages);

  // Chunk c of a key lies at place c ^ swizzle(key): eight neighbouring keys have theirs in different banks.
  static __device__ __forceinline__ int swizzle(int key) { return key * KEY_BYTES / 128 % GROUPS; }

  // Rows from `row` on that have the same keys and stand in one group.
  struct Run {
    int row = 0;
    int rows = 0;
    int begin = 0;
    int keys = 0;

    __device__ __forceinline__ int tiles() const { return (keys + TILE - 1) / TILE; }
  };

  static __device__ __forceinline__ int length(const ScoreArguments& a, int row) {
    const int keys = a.end[row] - (IS_PAGED ? 0 : a.begin[row]);
    return max(0, min(keys, a.width));
  }

  static __device__ __forceinline__ Run run_at(const ScoreArguments& a, int row) {
    Run run{row, 0, 0, 0};
    if (row >= a.num_rows) return run;
    run.begin = IS_PAGED ? 0 : a.begin[row];
    do {
      run.keys = max(run.keys, length(a, row));
      ++run.rows;
      ++row;
    } while (ROWS > 1 && row % ROWS != 0 && row < a.num_rows && has_keys_of(a, row, run.begin));
    return run;
  }

  // Entries of a run that may be read.
  static __device__ __forceinline__ int limit(const ScoreArguments& a, const Run& run) {
    const int keys = IS_LISTED ? a.end[run.row] - run.begin : run.keys;
    if (IS_PAGED) return min(keys, a.table_width * ENTRIES);
    return int(min((long long)keys, a.num_keys - run.begin));
  }

  static __device__ __forceinline__ bool has_keys_of(const ScoreArguments& a, int row, int begin) {
    return !IS_PAGED && a.begin[row] == begin;
  }

  // Find the first tile of this block; how many it has.
  static __device__ __forceinline__ int share(const ScoreArguments& a, Shared& s) {
    const int groups = (a.num_rows + ROWS - 1) / ROWS, own = (groups + THREADS - 1) / THREADS * ROWS;
    const int from = min(int(threadIdx.x) * own, a.num_rows), to = min(from + own, a.num_rows);
    long long tiles = 0;
    for (Run run = run_at(a, from); run.row < to; run = run_at(a, run.row + run.rows)) tiles += run.tiles();
    long long before = tiles;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const long long other = __shfl_up_sync(~0u, before, step);
      if (lane >= step) before += other;
    }
    if (lane == 31) s.sums[warp] = before;
    __syncthreads();
    long long total = 0;
#pragma unroll
    for (int i = 0; i < WARPS; ++i) {
      if (i < warp) before += s.sums[i];
      total += s.sums[i];
    }
    before -= tiles;
    const long long first = total * blockIdx.x / gridDim.x, last = total * (blockIdx.x + 1) / gridDim.x;
    if (first < last && before <= first && first < before + tiles) {
      Run run = run_at(a, from);
      for (; first >= before + run.tiles(); run = run_at(a, run.row + run.rows)) before += run.tiles();
      s.first_row = run.row;
      s.first_tile = int(first - before);
    }
    __syncthreads();
    return int(last - first);
  }
};

}  // namespace thalweg
