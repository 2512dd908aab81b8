// Index scores of rows with keys in pages or in rows, all of them or those of listed blocks; see mxfp4_scores.cuh.
//
// The grid stays: the tiles of keys of all rows are shared out evenly, each block taking neighbouring ones. Rows that
// have the same keys (up to ROWS of them, as far as they stand in one group of ROWS) go through a tile together.
#pragma once
#include "score_loads.cuh"

namespace thalweg {

template <int HEADS_, int DIM_, int ENTRIES_, int BLOCK_, int ROWS_, int N_, int STAGES_>
struct Scores : ScorePlan<HEADS_, DIM_, ENTRIES_, BLOCK_, ROWS_, N_, STAGES_> {
  using Plan = ScorePlan<HEADS_, DIM_, ENTRIES_, BLOCK_, ROWS_, N_, STAGES_>;
  using typename Plan::Query;
  using typename Plan::Run;
  using typename Plan::Shared;
  using Plan::HEADS, Plan::ROWS, Plan::N, Plan::STAGES, Plan::GROUPS, Plan::KEY_BYTES, Plan::DATA_BYTES;
  using Plan::STAGE_BYTES, Plan::STAGES_AT, Plan::length, Plan::run_at, Plan::share, Plan::swizzle;
  static constexpr int HALF = TILE / 2, SIDE = 8;  // keys: of a half tile, and between the lane's two

  // Where a lane finds what it reads of the first stage: keys of a matrix of ldmatrix, scales of its own key.
  struct Places {
    uint32_t data;
    uint32_t scales;

    __device__ __forceinline__ explicit Places(uint32_t memory) {
      const int lane = threadIdx.x % 32, first = threadIdx.x / 32 * 16, key = first + lane % 8, matrix = lane / 8;
      data = memory + STAGES_AT + (key + matrix / GROUPS * SIDE) * KEY_BYTES + (matrix % GROUPS ^ swizzle(key)) * 16;
      scales = memory + STAGES_AT + DATA_BYTES + (first + lane / 4) * GROUPS;
    }
  };

  // Of half a tile, the lane's part: keys lane / 4 and, a side further, lane / 4 + 8 of the warp's 16.
  struct Keys {
    uint32_t operand[GROUPS][4];
    float scales[2][GROUPS];

    __device__ __forceinline__ void read(const Places& places, uint32_t stage, int half) {
#pragma unroll
      for (int quad = 0; quad < GROUPS / 2; ++quad) {
        uint32_t words[4];
        load_matrices(words, places.data + stage + (half * HALF + quad * SIDE) * KEY_BYTES);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int side = (quad * 4 + i) / GROUPS, g = (quad * 4 + i) % GROUPS;
          operand[g][side] = low_nibbles(words[i]);
          operand[g][side + 2] = high_nibbles(words[i]);
        }
      }
#pragma unroll
      for (int side = 0; side < 2; ++side) {
        const uint32_t address = places.scales + stage + (half * HALF + side * SIDE) * GROUPS;
        const uint32_t word = GROUPS == 4 ? load_word(address) : load_half_word(address);
#pragma unroll
        for (int g = 0; g < GROUPS; ++g)
          scales[side][g] = __uint_as_float((g < 3 ? word << (23 - 8 * g) : word >> 1) & 0x7F800000u);
      }
#pragma unroll
      for (int g = 0; g < GROUPS; ++g) keep_order(operand[g]);  // products must not begin before these are there
    }
  };

  struct Weights {
    float2 pairs[HEADS / 8];

    __device__ __forceinline__ void load(const Query& query) {
#pragma unroll
      for (int octet = 0; octet < HEADS / 8; ++octet)
        pairs[octet] = *reinterpret_cast<const float2*>(&query.weights[octet * 8 + threadIdx.x % 4 * 2]);
    }
  };

  // Scores of one row with the lane's two keys, of the quarter of the heads that the lane has. Products of a group come
  // in while those of the group before are scaled and added up.
  template <bool IS_WIDE>
  static __device__ __forceinline__ void score(const Query& query, uint32_t bytes, const Weights& weights, Keys& keys,
                                               float (&scores)[2]) {
    scores[0] = scores[1] = 0.0f;
#pragma unroll
    for (int chunk = 0; chunk < HEADS / N; ++chunk) {
      float parts[2][N / 2], sums[N / 2];
      multiply_begin();
#pragma unroll
      for (int g = 0; g < 2; ++g) {
        multiply_group<HEADS, N>(parts[g], keys.operand[g], bytes + (g * 2 * HEADS + chunk * N) * 16);
        multiply_commit();
      }
#pragma unroll
      for (int g = 0; g < GROUPS; ++g) {
        if (g + 1 < GROUPS) multiply_wait<1>();
        else multiply_wait<0>();
        keep_order(parts[g % 2]);
#pragma unroll
        for (int i = 0; i < N / 2; ++i) {
          const int head = chunk * N + i / 4 * 8 + threadIdx.x % 4 * 2 + i % 2;
          const float part = parts[g % 2][i], scaled = IS_WIDE ? part * query.scales[g][head] : part;
          sums[i] = g == 0 ? scaled * keys.scales[i % 4 / 2][0] : fmaf(scaled, keys.scales[i % 4 / 2][g], sums[i]);
        }
        if (g + 2 < GROUPS) {
          multiply_begin();
          multiply_group<HEADS, N>(parts[g % 2], keys.operand[g + 2], bytes + ((g + 2) * 2 * HEADS + chunk * N) * 16);
          multiply_commit();
        }
      }
#pragma unroll
      for (int i = 0; i < N / 2; ++i) {
        const float2 pair = weights.pairs[chunk * (N / 8) + i / 4];
        scores[i % 4 / 2] = fmaf(twice_positive(sums[i]), i % 2 ? pair.y : pair.x, scores[i % 4 / 2]);
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

  // Lay out the queries of a run; whether any needs scales of its own.
  static __device__ __forceinline__ bool load_run(const ScoreArguments& a, Shared& s, const Run& run) {
    bool is_wide = false;
    __syncthreads();
    for (int i = 0; i < run.rows; ++i) {
      const long long row = run.row + i;
      is_wide |= load_query(s.queries[i], a.q + row * HEADS * KEY_BYTES, a.q_scales + row * HEADS * GROUPS,
                            a.head_weights + row * HEADS);
      if (threadIdx.x == 0) s.lengths[i] = length(a, row);
    }
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    return is_wide;
  }

  // What goes from one tile to the next.
  struct State {
    uint32_t memory;
    Places places;
    ScoreLoader<Plan> loader;
    int column;  // the first whose score this lane writes, if it writes any
    uint32_t stage = 0;  // in bytes from the first one
  };

  // All tiles of a run from `first` to before `past`.
  template <bool IS_WIDE>
  static __device__ __forceinline__ void score_run(const ScoreArguments& a, const Shared& s, State& state,
                                                   const Run& run, int first, int past) {
    Weights weights;
    int visible = 0;
    if (ROWS == 1) {
      weights.load(s.queries[0]);
      visible = s.lengths[0];
    }
    __nv_bfloat16* target = a.scores + (long long)run.row * a.score_stride + (state.column + first * TILE);
    int begin = first * TILE;
#pragma unroll 1
    for (int tile = first; tile < past; ++tile) {
      copies_wait<STAGES - 2>();
      __syncthreads();
      // Into the stage that all have read.
      state.loader.load(state.stage == 0 ? (STAGES - 1) * STAGE_BYTES : state.stage - STAGE_BYTES);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        Keys keys;
        keys.read(state.places, state.stage, half);
        for (int i = 0; i < (ROWS == 1 ? 1 : run.rows); ++i) {
          const Query& query = s.queries[i];
          if (ROWS > 1) {
            visible = s.lengths[i];
            if (begin + half * HALF >= visible) continue;
            weights.load(query);
          }
          float scores[2];
          score<IS_WIDE>(query, state.memory + i * sizeof(Query), weights, keys, scores);
          const float sum = over_quad(scores);
          if (state.column + begin < visible - half * HALF)
            target[(long long)i * a.score_stride + half * HALF] = __float2bfloat16_rn(sum);
        }
      }
      target += TILE;
      begin += TILE;
      state.stage = state.stage == (STAGES - 1) * STAGE_BYTES ? 0 : state.stage + STAGE_BYTES;
    }
  }

  static __device__ __forceinline__ void body(const ScoreArguments& a, void* shared) {
    Shared& s = *reinterpret_cast<Shared*>(shared);
    const uint32_t memory = fixed_address(shared);
    int left = share(a, s);
    if (left == 0) return;
    Run run = run_at(a, s.first_row);
    int tile = s.first_tile;
    const int lane = threadIdx.x % 32;
    State state{memory, Places(memory), {a, memory + STAGES_AT, run, tile, left},
                lane % 4 < 2 ? int(threadIdx.x / 32 * 16 + lane % 2 * SIDE + lane / 4) : 1 << 29};
    state.loader.start();
    state.loader.look_up();
#pragma unroll 1
    for (int i = 0; i < STAGES - 1; ++i) state.loader.load(i * STAGE_BYTES);
    while (left > 0) {
      const int past = min(run.tiles(), tile + left);
      if (load_run(a, s, run)) score_run<true>(a, s, state, run, tile, past);
      else score_run<false>(a, s, state, run, tile, past);
      left -= past - tile;
      tile = 0;
      do run = run_at(a, run.row + run.rows);
      while (left > 0 && run.tiles() == 0);
    }
  }
};

}  // namespace thalweg
