// Index scores of rows with keys in pages or in rows, all of them or those of listed blocks; see mxfp4_scores.cuh.
//
// The grid stays: the tiles of 64 keys of all rows are shared out evenly, each block taking neighbouring ones. Rows that
// have the same keys (up to ROWS of them, as far as they stand in one group of ROWS) go through a tile together.
#pragma once
#include "mxfp4_scores.cuh"

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
  long long page_stride;
  long long num_keys;         // of rows
  int num_rows;
  int table_width;
  int listed;
  int width;
  int score_stride;
};

// HEADS x DIM queries; ENTRIES of a page, 0: keys in rows; BLOCK entries of a listed block, 0: all keys; ROWS at a time;
// N heads in a product; STAGES of 64 keys in flight.
template <int HEADS_, int DIM_, int ENTRIES_, int BLOCK_, int ROWS_, int N_, int STAGES_>
struct Scores {
  static constexpr int HEADS = HEADS_, DIM = DIM_, ENTRIES = ENTRIES_, BLOCK = BLOCK_, ROWS = ROWS_, N = N_;
  static constexpr int STAGES = STAGES_, GROUPS = DIM / 32, KEY_BYTES = DIM / 2;
  static constexpr bool IS_PAGED = ENTRIES > 0, IS_LISTED = BLOCK > 0;
  // Keys that lie together in memory, at least.
  static constexpr int UNIT = IS_LISTED ? 8 : 16, UNITS = TILE / UNIT;
  // Scales of rows start at any key, bulk loads at multiples of 16 bytes.
  static constexpr int UNIT_SCALES = UNIT * GROUPS + (IS_PAGED ? 0 : 16);
  static constexpr bool IS_ONE_PAGE = IS_PAGED && !IS_LISTED && ENTRIES % TILE == 0;
  static constexpr int PIECE_BYTES = PIECE * KEY_BYTES + PIECE_PAD, DATA_BYTES = TILE / PIECE * PIECE_BYTES;
  static constexpr int STAGE_BYTES = DATA_BYTES + UNITS * UNIT_SCALES;
  static_assert(STAGE_BYTES % 16 == 0 && UNIT_SCALES % 16 == 0 && PIECE_BYTES % 16 == 0);
  using Query = QueryRow<HEADS, DIM>;

  struct Shared {
    Query queries[ROWS];
    alignas(16) uint8_t stages[STAGES][STAGE_BYTES];
    uint64_t full[STAGES];
    uint64_t empty[STAGES];
    int first_row;
    int first_tile;
    long long sums[THREADS / 32];
  };

  // Rows from `row` on that have the same keys and stand in one group.
  struct Run {
    int row = 0;
    int rows = 0;
    int begin = 0;
    int keys = 0;

    __device__ __forceinline__ int tiles() const { return (keys + TILE - 1) / TILE; }
  };

  static __device__ __forceinline__ int length(const ScoreArguments& a, int row) {
    int keys = a.end[row] - (IS_PAGED ? 0 : a.begin[row]);
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

  static __device__ __forceinline__ bool has_keys_of(const ScoreArguments& a, int row, int begin) {
    return !IS_PAGED && a.begin[row] == begin;
  }

  // The first tile of this block, and how many it has.
  static __device__ __forceinline__ long long share(const ScoreArguments& a, Shared& s) {
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
    for (int i = 0; i < THREADS / 32; ++i) {
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
    return last - first;
  }

  // What one lane of the first warp loads: unit `lane` of one tile after the other.
  struct Loader {
    Run run;
    int tile;
    long long left;
    int block = -1;  // listed one, of the tile
    int page = 0;

    __device__ __forceinline__ int first_entry() const {
      const int column = tile * TILE + int(threadIdx.x) % 32 * UNIT;
      if constexpr (IS_LISTED) return block * BLOCK + column % BLOCK;
      return column;
    }

    // Whether the unit has entries that count, given what was fetched.
    __device__ __forceinline__ bool has_keys(const ScoreArguments& a) const {
      if (left <= 0 || threadIdx.x >= UNITS) return false;
      if (IS_LISTED && block < 0) return false;
      return IS_LISTED ? first_entry() < a.end[run.row] - (IS_PAGED ? 0 : run.begin)
                       : tile * TILE + int(threadIdx.x) * UNIT < run.keys;
    }

    // Fetch what the addresses of the tile depend on.
    __device__ __forceinline__ void look_up(const ScoreArguments& a) {
      if (left <= 0 || threadIdx.x >= UNITS) return;
      if constexpr (IS_LISTED) {
        const int column = (tile * TILE + int(threadIdx.x) * UNIT) / BLOCK;
        block = column < a.listed ? a.blocks[(long long)run.row * a.listed + column] : -1;
        if (block < 0) return;
      }
      if constexpr (IS_PAGED) {
        const int cell = first_entry() / ENTRIES;
        if (cell < a.table_width) page = a.tables[(long long)run.row * a.table_width + cell];
      }
    }

    __device__ __forceinline__ void load(const ScoreArguments& a, uint8_t* stage, uint64_t* full) {
      const int unit = threadIdx.x, entry = first_entry();
      uint8_t* data = stage + unit * UNIT / PIECE * PIECE_BYTES + unit * UNIT % PIECE * KEY_BYTES;
      uint8_t* scales = stage + DATA_BYTES + unit * UNIT_SCALES;
      if constexpr (IS_PAGED) {
        const bool is_there = has_keys(a) && entry < a.table_width * ENTRIES;
        const uint8_t* from = a.keys + page * a.page_stride;
        const int place = entry % ENTRIES;
        const int scale_bytes = IS_ONE_PAGE ? (unit == 0 ? TILE * GROUPS : 0) : UNIT * GROUPS;
        const unsigned loading = __ballot_sync((1u << UNITS) - 1, is_there);
        if (unit == 0) {
          const int units = __popc(loading);
          barrier_arrive_and_expect(full, units * UNIT * (KEY_BYTES + (IS_ONE_PAGE ? 0 : GROUPS)) +
                                              (IS_ONE_PAGE && is_there ? TILE * GROUPS : 0));
        }
        if (is_there) {
          bulk_load(data, from + place * KEY_BYTES, UNIT * KEY_BYTES, full);
          if (scale_bytes) bulk_load(scales, from + ENTRIES * KEY_BYTES + place * GROUPS, scale_bytes, full);
        }
      } else {
        load_rows(a, data, scales, run.begin + (long long)entry, full);
      }
    }

    // Rows may end inside of a unit, and their scales inside of 16 bytes, whose last ones are then copied one by one.
    __device__ __forceinline__ void load_rows(const ScoreArguments& a, uint8_t* data, uint8_t* scales, long long key,
                                              uint64_t* full) {
      const int count = has_keys(a) ? int(max(0ll, min((long long)UNIT, a.num_keys - key))) : 0;
      const long long first = key * GROUPS / 16 * 16, past = count ? (key + count) * GROUPS : first;
      const int whole = int(min((past + 15) / 16 * 16, a.num_keys * GROUPS / 16 * 16) - first);
      const int bytes = max(0, whole);
      for (long long i = first + bytes; i < past; ++i) scales[i - first] = a.key_scales[i];
      int expected = count ? count * KEY_BYTES + bytes : 0;
#pragma unroll
      for (int step = 1; step < UNITS; step *= 2) expected += __shfl_xor_sync((1u << UNITS) - 1, expected, step);
      __syncwarp((1u << UNITS) - 1);
      if (threadIdx.x == 0) barrier_arrive_and_expect(full, expected);
      if (count) {
        bulk_load(data, a.keys + key * KEY_BYTES, count * KEY_BYTES, full);
        if (bytes) bulk_load(scales, a.key_scales + first, bytes, full);
      }
    }

    __device__ __forceinline__ void advance(const ScoreArguments& a) {
      --left;
      ++tile;
      while (left > 0 && tile >= run.tiles()) {
        run = run_at(a, run.row + run.rows);
        tile = 0;
      }
    }
  };

  // Scores of one row, from registers with 16 keys of each warp: two of them in this lane's quad.
  template <bool IS_WIDE>
  static __device__ __forceinline__ void score(const Query& query, const uint32_t (&a)[GROUPS][4],
                                               const float (&key_scales)[2][GROUPS], float (&scores)[2]) {
    const int column = threadIdx.x % 4 * 2;
    scores[0] = scores[1] = 0.0f;
#pragma unroll
    for (int chunk = 0; chunk < HEADS / N; ++chunk) {
      float sums[GROUPS][N / 2];
      multiply_begin();
#pragma unroll
      for (int g = 0; g < GROUPS; ++g) {
        const uint8_t* bytes = query.bytes + (g * 2 * HEADS + chunk * N) * 16;
        multiply_group<HEADS, N>(sums[g], a[g], bytes);
      }
      multiply_commit();
      multiply_wait();
#pragma unroll
      for (int g = 0; g < GROUPS; ++g) keep_order(sums[g]);
#pragma unroll
      for (int octet = 0; octet < N / 8; ++octet) {
        const int head = chunk * N + octet * 8 + column;
        const float2 weights = *reinterpret_cast<const float2*>(&query.weights[head]);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int side = i / 2;
          float sum = 0.0f;
#pragma unroll
          for (int g = 0; g < GROUPS; ++g) {
            const float part = sums[g][octet * 4 + i];
            const float scaled = IS_WIDE ? part * query.scales[g][head + i % 2] : part;
            sum = g == 0 ? scaled * key_scales[side][0] : fmaf(scaled, key_scales[side][g], sum);
          }
          scores[side] = fmaf(fmaxf(sum, 0.0f), i % 2 ? weights.y : weights.x, scores[side]);
        }
      }
    }
  }

  // Of 64 keys, the two of a lane's quad: those of row lane / 4 of a warp's matrix, and of row lane / 4 + 8.
  static __device__ __forceinline__ int key_of(int matrix_row, int side) {
    const int warp = threadIdx.x / 32, is_odd = matrix_row & 1;
    return matrix_row / 2 * PIECE + warp * 4 + (side == 0 ? is_odd * 3 : is_odd + 1);
  }

  static __device__ __forceinline__ void read_tile(const uint8_t* stage, int scale_offset, uint32_t (&a)[GROUPS][4],
                                                   float (&key_scales)[2][GROUPS]) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int quad = 0; quad < GROUPS / 2; ++quad) {
      const int matrix = quad * 4 + lane / 8, side = matrix / GROUPS, key = key_of(lane % 8, side);
      uint32_t words[4];
      load_matrices(words, shared_address(stage + key / PIECE * PIECE_BYTES + key % PIECE * KEY_BYTES) +
                               matrix % GROUPS * 16);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int target = (quad * 4 + i) / GROUPS, g = (quad * 4 + i) % GROUPS;
        a[g][target] = low_nibbles(words[i]);
        a[g][target + 2] = high_nibbles(words[i]);
      }
    }
#pragma unroll
    for (int side = 0; side < 2; ++side) {
      const int key = key_of(lane / 4, side);
      const uint8_t* bytes = stage + DATA_BYTES + key / UNIT * UNIT_SCALES + key % UNIT * GROUPS + scale_offset;
      if constexpr (GROUPS == 4) {
        const uint32_t word = *reinterpret_cast<const uint32_t*>(bytes);
        key_scales[side][0] = __uint_as_float(word << 23 & 0x7F800000u);
        key_scales[side][1] = __uint_as_float(word << 15 & 0x7F800000u);
        key_scales[side][2] = __uint_as_float(word << 7 & 0x7F800000u);
        key_scales[side][3] = __uint_as_float(word >> 1 & 0x7F800000u);
      } else {
#pragma unroll
        for (int g = 0; g < GROUPS; ++g) key_scales[side][g] = power_of_two(bytes[g]);
      }
    }
  }

  static __device__ __forceinline__ void store(const ScoreArguments& a, int row, int tile, const float (&scores)[2]) {
    const int lane = threadIdx.x % 32, side = lane & 1;
    float own = side ? scores[1] : scores[0];
    own += __shfl_xor_sync(~0u, side ? scores[0] : scores[1], 1);
    own += __shfl_xor_sync(~0u, own, 2);
    const int column = tile * TILE + key_of(lane / 4, side);
    if (lane % 4 < 2 && column < length(a, row)) a.scores[(long long)row * a.score_stride + column] = __float2bfloat16_rn(own);
  }

  static __device__ __forceinline__ void body(const ScoreArguments& a, void* memory) {
    Shared& s = *reinterpret_cast<Shared*>(memory);
    if (threadIdx.x < STAGES) {
      barrier_init(&s.full[threadIdx.x], 1);
      barrier_init(&s.empty[threadIdx.x], THREADS / 32);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    const long long tiles = share(a, s);
    if (tiles == 0) return;
    Run run = run_at(a, s.first_row);
    int tile = s.first_tile;
    const bool is_loading = threadIdx.x < UNITS;
    Loader loader{run, tile, tiles};
    if (is_loading) {
      for (int stage = 0; stage < STAGES - 1 && loader.left > 0; ++stage) {
        loader.look_up(a);
        loader.load(a, s.stages[stage], &s.full[stage]);
        loader.advance(a);
      }
      loader.look_up(a);
    }
    bool is_new = true;
    int stage = 0, parity = 0;
    for (long long turn = 0; turn < tiles; ++turn) {
      if (is_new) {
        __syncthreads();
        for (int i = 0; i < run.rows; ++i) {
          const long long row = run.row + i;
          load_query(s.queries[i], a.q + row * HEADS * KEY_BYTES, a.q_scales + row * HEADS * GROUPS,
                     a.head_weights + row * HEADS);
        }
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        __syncthreads();
        is_new = false;
      }
      if (is_loading && loader.left > 0) {
        const int next = stage == 0 ? STAGES - 1 : stage - 1;
        if (turn > 0) barrier_wait(&s.empty[next], stage == 0 ? parity ^ 1 : parity);
        loader.load(a, s.stages[next], &s.full[next]);
        loader.advance(a);
        loader.look_up(a);
      }
      __syncwarp();
      barrier_wait(&s.full[stage], parity);
      uint32_t operand[GROUPS][4];
      float key_scales[2][GROUPS];
      read_tile(s.stages[stage], IS_PAGED ? 0 : int((long long)run.begin * GROUPS % 16), operand, key_scales);
      __syncwarp();
      if (threadIdx.x % 32 == 0) barrier_arrive(&s.empty[stage]);
      for (int i = 0; i < run.rows; ++i) {
        if (ROWS > 1 && tile * TILE >= length(a, run.row + i)) continue;
        float scores[2];
        if (s.queries[i].is_wide) score<true>(s.queries[i], operand, key_scales, scores);
        else score<false>(s.queries[i], operand, key_scales, scores);
        store(a, run.row + i, tile, scores);
      }
      if (++stage == STAGES) {
        stage = 0;
        parity ^= 1;
      }
      ++tile;
      while (turn + 1 < tiles && tile >= run.tiles()) {
        run = run_at(a, run.row + run.rows);
        tile = 0;
        is_new = true;
      }
    }
  }
};

}  // namespace thalweg
