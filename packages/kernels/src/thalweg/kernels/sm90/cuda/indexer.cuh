// Index scores of rows with keys in pages or in rows, all of them or those of listed blocks; see mxfp4_scores.cuh.
//
// The grid stays: the tiles of keys of all rows are shared out evenly, each block taking neighbouring ones. Rows that
// have the same keys (up to ROWS of them, as far as they stand in one group of ROWS) go through a tile together.
#pragma once
#include "score_plan.cuh"

namespace thalweg {

template <int HEADS_, int DIM_, int ENTRIES_, int BLOCK_, int ROWS_, int N_, int STAGES_>
struct Scores : ScorePlan<HEADS_, DIM_, ENTRIES_, BLOCK_, ROWS_, N_, STAGES_> {
  using Plan = ScorePlan<HEADS_, DIM_, ENTRIES_, BLOCK_, ROWS_, N_, STAGES_>;
  using typename Plan::Query;
  using typename Plan::Run;
  using typename Plan::Shared;
  using Plan::HEADS, Plan::ENTRIES, Plan::BLOCK, Plan::ROWS, Plan::N, Plan::STAGES, Plan::GROUPS, Plan::KEY_BYTES;
  using Plan::WARPS, Plan::IS_PAGED, Plan::IS_LISTED, Plan::UNIT, Plan::UNITS, Plan::SCALE_RUN, Plan::UNIT_SCALES;
  using Plan::PIECE_BYTES, Plan::DATA_BYTES, Plan::HALF_SCALES, Plan::STAGE_BYTES, Plan::STAGES_AT, Plan::FULL_AT;
  using Plan::EMPTY_AT, Plan::length, Plan::run_at, Plan::share;

  // What a lane of the first warp loads: its unit of one tile after the other.
  struct Loader {
    const ScoreArguments& a;
    uint32_t memory;
    Run run;
    int tile;
    int left;
    int block = -1;  // listed one, of the tile
    int page = 0;

    static constexpr unsigned LANES = UNITS == 32 ? ~0u : (1u << UNITS % 32) - 1;

    __device__ __forceinline__ int first_entry() const {
      const int column = tile * TILE + int(threadIdx.x) * UNIT;
      if constexpr (IS_LISTED) return block * BLOCK + column % BLOCK;
      return column;
    }

    // Fetch what the addresses of the tile depend on.
    __device__ __forceinline__ void look_up() {
      const int column = tile * TILE + int(threadIdx.x) * UNIT;
      if (left <= 0) return;
      if constexpr (IS_LISTED) {
        const int place = column / BLOCK;
        block = place < a.listed ? a.blocks[(long long)run.row * a.listed + place] : -1;
        if (block < 0) return;
      }
      if constexpr (IS_PAGED) {
        const int cell = first_entry() / ENTRIES;
        if (cell < a.table_width) page = a.tables[(long long)run.row * a.table_width + cell];
      }
    }

    // Keys of the unit that count.
    __device__ __forceinline__ int keys() const {
      const int entry = first_entry();
      if constexpr (IS_LISTED) {
        const int end = IS_PAGED ? min(a.end[run.row], a.table_width * ENTRIES) : a.end[run.row] - run.begin;
        return block < 0 ? 0 : min(UNIT, end - entry);
      }
      return min(UNIT, (IS_PAGED ? min(run.keys, a.table_width * ENTRIES) : run.keys) - entry);
    }

    __device__ __forceinline__ void load(int stage) {
      const int unit = threadIdx.x, entry = first_entry(), count = keys();
      const uint32_t place = memory + STAGES_AT + stage * STAGE_BYTES, full = memory + FULL_AT + stage * 8;
      const uint32_t data = place + unit * UNIT / PIECE * PIECE_BYTES + unit * UNIT % PIECE * KEY_BYTES;
      const uint32_t scales = place + DATA_BYTES + unit * UNIT_SCALES;
      if constexpr (IS_PAGED) {
        const uint8_t* from = a.keys + page * a.page_stride;
        const bool has_scales = unit * UNIT % SCALE_RUN == 0;
        const int bytes = count <= 0 ? 0 : UNIT * KEY_BYTES + (has_scales ? SCALE_RUN * GROUPS : 0);
        const int expected = __reduce_add_sync(LANES, bytes);
        if (unit == 0) barrier_arrive_and_expect(full, expected);
        if (count > 0) {
          bulk_load(data, from + entry % ENTRIES * KEY_BYTES, UNIT * KEY_BYTES, full);
          if (has_scales)
            bulk_load(scales, from + ENTRIES * KEY_BYTES + entry % ENTRIES * GROUPS, SCALE_RUN * GROUPS, full);
        }
      } else {
        load_rows(data, scales, run.begin + (long long)entry, count, full);
      }
    }

    // The last scales of all may end inside of 16 bytes, and are then copied one by one.
    __device__ __forceinline__ void load_rows(uint32_t data, uint32_t scales, long long key, int count, uint32_t full) {
      count = max(0, min(count, int(min(a.num_keys - key, (long long)UNIT))));
      const long long first = key * GROUPS / 16 * 16, past = (key + count) * GROUPS;
      const long long whole = min((past + 15) / 16 * 16, a.num_keys * GROUPS / 16 * 16);
      const int bytes = count ? max(0, int(whole - first)) : 0;
      if (count)
        for (long long i = first + bytes; i < past; ++i)
          asm volatile("st.shared.b8 [%0], %1;" ::"r"(scales + uint32_t(i - first)), "r"(uint32_t(a.key_scales[i])));
      const int expected = __reduce_add_sync(LANES, count * KEY_BYTES + bytes);
      __syncwarp(LANES);
      if (threadIdx.x == 0) barrier_arrive_and_expect(full, expected);
      if (count) bulk_load(data, a.keys + key * KEY_BYTES, count * KEY_BYTES, full);
      if (bytes) bulk_load(scales, a.key_scales + first, bytes, full);
    }

    __device__ __forceinline__ void advance() {
      --left;
      ++tile;
      while (left > 0 && tile >= run.tiles()) {
        run = run_at(a, run.row + run.rows);
        tile = 0;
      }
    }
  };

  // Of the keys of half a tile, the two of a lane's quad: those of rows lane / 4 and lane / 4 + 8 of a warp's matrix.
  static __device__ __forceinline__ int key_of(int matrix_row, int side) {
    const int warp = threadIdx.x / 32, is_odd = matrix_row & 1;
    return matrix_row / 2 * PIECE + warp * 4 + (side == 0 ? is_odd * 3 : is_odd + 1);
  }

  // Where a lane finds what it reads of a tile, in bytes from its start.
  struct Places {
    uint32_t data[GROUPS / 2];
    uint32_t scales[2];

    __device__ __forceinline__ Places() {
      const int lane = threadIdx.x % 32;
#pragma unroll
      for (int quad = 0; quad < GROUPS / 2; ++quad) {
        const int matrix = quad * 4 + lane / 8, key = key_of(lane % 8, matrix / GROUPS);
        data[quad] = key / PIECE * PIECE_BYTES + key % PIECE * KEY_BYTES + matrix % GROUPS * 16;
      }
#pragma unroll
      for (int side = 0; side < 2; ++side) {
        const int key = key_of(lane / 4, side);
        scales[side] = DATA_BYTES + key / UNIT * UNIT_SCALES + key % UNIT * GROUPS;
      }
    }
  };

  // Half a tile as operands, and the scales of the lane's two keys.
  static __device__ __forceinline__ void read_half(const Places& places, uint32_t stage, int half, int scale_offset,
                                                   uint32_t (&operand)[GROUPS][4], float (&key_scales)[2][GROUPS]) {
#pragma unroll
    for (int quad = 0; quad < GROUPS / 2; ++quad) {
      uint32_t words[4];
      load_matrices(words, stage + places.data[quad] + half * HALF * KEY_BYTES);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int side = (quad * 4 + i) / GROUPS, g = (quad * 4 + i) % GROUPS;
        operand[g][side] = low_nibbles(words[i]);
        operand[g][side + 2] = high_nibbles(words[i]);
      }
    }
#pragma unroll
    for (int side = 0; side < 2; ++side) {
      const uint32_t address = stage + places.scales[side] + half * HALF_SCALES + scale_offset;
      if constexpr (GROUPS == 4) {
        const uint32_t word = load_word(address);
        key_scales[side][0] = __uint_as_float(word << 23 & 0x7F800000u);
        key_scales[side][1] = __uint_as_float(word << 15 & 0x7F800000u);
        key_scales[side][2] = __uint_as_float(word << 7 & 0x7F800000u);
        key_scales[side][3] = __uint_as_float(word >> 1 & 0x7F800000u);
      } else {
        const uint32_t word = load_half_word(address);
        key_scales[side][0] = __uint_as_float(word << 23 & 0x7F800000u);
        key_scales[side][1] = __uint_as_float(word << 15 & 0x7F800000u);
      }
    }
  }

  struct Weights {
    float2 pairs[HEADS / 8];

    __device__ __forceinline__ void load(const Query& query) {
#pragma unroll
      for (int octet = 0; octet < HEADS / 8; ++octet)
        pairs[octet] = *reinterpret_cast<const float2*>(&query.weights[octet * 8 + threadIdx.x % 4 * 2]);
    }
  };

  // Scores of one row with the lane's two keys, of the quarter of the heads that the lane has.
  template <bool IS_WIDE>
  static __device__ __forceinline__ void score(const Query& query, uint32_t bytes, const Weights& weights,
                                               const uint32_t (&operand)[GROUPS][4],
                                               const float (&key_scales)[2][GROUPS], float (&scores)[2]) {
    scores[0] = scores[1] = 0.0f;
#pragma unroll
    for (int chunk = 0; chunk < HEADS / N; ++chunk) {
      float sums[GROUPS][N / 2];
      multiply_begin();
#pragma unroll
      for (int g = 0; g < GROUPS; ++g)
        multiply_group<HEADS, N>(sums[g], operand[g], bytes + (g * 2 * HEADS + chunk * N) * 16);
      multiply_commit();
      multiply_wait();
#pragma unroll
      for (int g = 0; g < GROUPS; ++g) keep_order(sums[g]);
#pragma unroll
      for (int octet = 0; octet < N / 8; ++octet) {
        const float2 pair = weights.pairs[chunk * (N / 8) + octet];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int side = i / 2, head = chunk * N + octet * 8 + threadIdx.x % 4 * 2 + i % 2;
          float sum = 0.0f;
#pragma unroll
          for (int g = 0; g < GROUPS; ++g) {
            const float part = sums[g][octet * 4 + i], scaled = IS_WIDE ? part * query.scales[g][head] : part;
            sum = g == 0 ? scaled * key_scales[side][0] : fmaf(scaled, key_scales[side][g], sum);
          }
          scores[side] = fmaf(fmaxf(sum, 0.0f), i % 2 ? pair.y : pair.x, scores[side]);
        }
      }
    }
  }

  // The sum over a quad's heads of both keys; lanes with an even number get the first, the others the second.
  static __device__ __forceinline__ float over_quad(const float (&scores)[2]) {
    const bool side = threadIdx.x & 1;
    float own = side ? scores[1] : scores[0];
    own += __shfl_xor_sync(~0u, side ? scores[0] : scores[1], 1);
    return own + __shfl_xor_sync(~0u, own, 2);
  }

  static __device__ __forceinline__ void load_run(const ScoreArguments& a, Shared& s, const Run& run) {
    __syncthreads();
    for (int i = 0; i < run.rows; ++i) {
      const long long row = run.row + i;
      load_query(s.queries[i], a.q + row * HEADS * KEY_BYTES, a.q_scales + row * HEADS * GROUPS,
                 a.head_weights + row * HEADS);
      if (threadIdx.x == 0) s.lengths[i] = length(a, row);
    }
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
  }

  static __device__ __forceinline__ void body(const ScoreArguments& a, void* shared) {
    Shared& s = *reinterpret_cast<Shared*>(shared);
    const uint32_t memory = fixed_address(shared);
    if (threadIdx.x < STAGES) {
      barrier_init(memory + FULL_AT + threadIdx.x * 8, 1);
      barrier_init(memory + EMPTY_AT + threadIdx.x * 8, WARPS);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    const int tiles = share(a, s);
    if (tiles == 0) return;
    Run run = run_at(a, s.first_row);
    int tile = s.first_tile, stage = 0, parity = 0;
    const bool is_loading = threadIdx.x < UNITS;
    Loader loader{a, memory, run, tile, tiles};
    if (is_loading) {
      for (int i = 0; i < STAGES - 1 && loader.left > 0; ++i) {
        loader.look_up();
        loader.load(i);
        loader.advance();
      }
      loader.look_up();
    }
    const Places places;
    // The first key whose score this lane writes, if it writes any.
    const int lane = threadIdx.x % 32;
    int column = lane % 4 < 2 ? key_of(lane / 4, lane & 1) : 1 << 30;
    asm volatile("" : "+r"(column));  // which need not be worked out again
    Weights weights;
    __nv_bfloat16* target = nullptr;
    int visible = 0;
    bool is_wide = false;
    for (int turn = 0; turn < tiles; ++turn) {
      if (turn == 0 || tile == 0) {
        load_run(a, s, run);
        if (ROWS == 1) {
          weights.load(s.queries[0]);
          is_wide = s.queries[0].is_wide;
          visible = s.lengths[0];
        }
        target = a.scores + (long long)run.row * a.score_stride + column;
      }
      if (is_loading && loader.left > 0) {
        const int next = stage == 0 ? STAGES - 1 : stage - 1;
        if (turn > 0) barrier_wait(memory + EMPTY_AT + next * 8, stage == 0 ? parity ^ 1 : parity);
        loader.load(next);
        loader.advance();
        loader.look_up();
      }
      __syncwarp();
      barrier_wait(memory + FULL_AT + stage * 8, parity);
      const uint32_t place = memory + STAGES_AT + stage * STAGE_BYTES;
      const int scale_offset = IS_PAGED ? 0 : int((long long)run.begin * GROUPS % 16);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        uint32_t operand[GROUPS][4];
        float key_scales[2][GROUPS];
        read_half(places, place, half, scale_offset, operand, key_scales);
        if (half == 1) {
          __syncwarp();
          if (lane == 0) barrier_arrive(memory + EMPTY_AT + stage * 8);
        }
        const int first = tile * TILE + half * HALF;
        for (int i = 0; i < (ROWS == 1 ? 1 : run.rows); ++i) {
          const Query& query = s.queries[i];
          if (ROWS > 1) {
            visible = s.lengths[i];
            if (first >= visible) continue;
            weights.load(query);
            is_wide = query.is_wide;
          }
          float scores[2];
          const uint32_t bytes = memory + i * sizeof(Query);
          if (is_wide) score<true>(query, bytes, weights, operand, key_scales, scores);
          else score<false>(query, bytes, weights, operand, key_scales, scores);
          const float sum = over_quad(scores);
          if (column < visible - first) target[(long long)i * a.score_stride + first] = __float2bfloat16_rn(sum);
        }
      }
      if (++stage == STAGES) {
        stage = 0;
        parity ^= 1;
      }
      ++tile;
      while (turn + 1 < tiles && tile >= run.tiles()) {
        run = run_at(a, run.row + run.rows);
        tile = 0;
      }
    }
  }
};

}  // namespace thalweg
