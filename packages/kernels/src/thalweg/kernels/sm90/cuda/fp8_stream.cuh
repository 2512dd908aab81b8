// Some rows of MXFP8 times a packed FP8 weight, both as they are stored: products are of e4m3 by e4m3, 32 columns each,
// and their float32 results are scaled and added up by ordinary arithmetic.
//
// A block has 128 rows of the weight. Four warps fill a ring of stages, 128 columns each: tiles of the weight, x in the
// order of columns that tiles have, and the factors of products. Two groups of four warps multiply, 64 rows of the weight
// each; while the products of one group of 32 columns run, those of another are scaled.

#include "fp8_filling.cuh"
#include "tile_products.cuh"

namespace thalweg {

// The work of four warps that multiply: the sums of 64 rows of the weight and ROWS rows of x.
template <int ROWS, int STAGES>
struct Multiplying {
  using Sums = float[ROWS / 2];
  Stream<ROWS, STAGES>& stream;
  Sums& sums;
  int warp, lane;  // warp of the eight that multiply

  // Begin the products of a group of columns.
  __device__ __forceinline__ void start(Sums& part, int stage, int group) const {
    const uint32_t tile = shared_address(stream.weights[stage][warp / 2]) + group * 1024;
    const uint4 v = load_shared_16(tile + warp % 2 * 512 + lane * 16);
    uint32_t a[4] = {v.x, v.z, v.y, v.w};
    ready(a);
    products_begin();
    product_e4m3<ROWS>(part, a, row_matrix(shared_address(stream.rows[stage])) + 2 * group);
    products_commit();
  }

  // Scale products that were waited for, and add them.
  __device__ __forceinline__ void add(Sums& part, int stage, int group) const {
    settle(part);
    const float* factors = stream.factors[stage][group][warp / 2] + lane % 4 * stream.kLaneFactors;
#pragma unroll
    for (int n = 0; n < ROWS / 8; n += 2) {
      const float4 f = *reinterpret_cast<const float4*>(factors + 2 * n);
      const float factor[4] = {f.x, f.y, f.z, f.w};
#pragma unroll
      for (int i = 0; i < 8; ++i) sums[4 * n + i] += part[4 * n + i] * factor[i / 4 * 2 + i % 2];
    }
  }

  __device__ __forceinline__ void run(const Steps& steps) const {
    int stage = 0;
    uint32_t phase = 0;
    Sums first, second;
    const int whole_steps = steps.count - (steps.last_groups < kStepGroups);
#pragma unroll 1
    for (int step = 0; step < whole_steps; ++step) {
      barrier_wait(shared_address(&stream.full[stage]), phase);
      start(first, stage, 0);
      start(second, stage, 1);
      products_wait<1>();
      add(first, stage, 0);
      start(first, stage, 2);
      products_wait<1>();
      add(second, stage, 1);
      start(second, stage, 3);
      products_wait<1>();
      add(first, stage, 2);
      products_wait<0>();
      add(second, stage, 3);
      __syncwarp();
      if (lane == 0) barrier_arrive(shared_address(&stream.empty[stage]));
      if (++stage == STAGES) stage = 0, phase ^= 1;
    }
    if (whole_steps == steps.count) return;
    barrier_wait(shared_address(&stream.full[stage]), phase);
    for (int group = 0; group < steps.last_groups; ++group) {
      start(first, stage, group);
      products_wait<0>();
      add(first, stage, group);
    }
  }
};

// out [n, O] for 128 rows of the weight, from those of tile row `place` of a group of its rows on, and ROWS rows of x from
// `column` on. The weight has tiles_down x width tiles, in `groups` parts with columns of x of their own; SPLITS blocks
// of a cluster share out its columns. `memory` has BYTES, for Stream and then for results.
template <int ROWS, int STAGES, int SPLITS, int BYTES>
__device__ __forceinline__ void fp8_stream(const uint8_t* codes, const uint8_t* scales, const uint8_t* tiles,
                                           const uint8_t* tile_scales, void* out, void* memory, int n, int width,
                                           int tiles_down, int groups, int block, int column) {
  static_assert(sizeof(Stream<ROWS, STAGES>) <= BYTES && ROWS * STAGED_COLUMN * 4 <= BYTES);
  auto& stream = *static_cast<Stream<ROWS, STAGES>*>(memory);
  const int place = block / SPLITS, rank = block % SPLITS, group_tiles = tiles_down / groups;
  const int per_group = (group_tiles + kTilesDown - 1) / kTilesDown, group = place / per_group;
  const int tile_row = group * group_tiles + (place - group * per_group) * kTilesDown, x_first = column * ROWS;
  const int all_steps = (width + kStepGroups - 1) / kStepGroups, begin = all_steps * rank / SPLITS;
  const int end = all_steps * (rank + 1) / SPLITS;
  const Steps steps{end - begin, min(width - (end - 1) * kStepGroups, kStepGroups)};
  if (threadIdx.x < kFillers) {
    const size_t x_start = (static_cast<size_t>(x_first) * groups + group) * width + begin * kStepGroups;
    const size_t w_start = static_cast<size_t>(tile_row) * width + begin * kStepGroups;
    const StreamSource from{codes + x_start * 32, scales + x_start, tiles + w_start * 1024, tile_scales + w_start,
                            min(ROWS, n - x_first), groups * width, min(kTilesDown, tiles_down - tile_row), width};
    Filling<ROWS, STAGES>{stream, from, steps}.run();
    return;
  }
  __syncthreads();
  const int thread = threadIdx.x - kFillers;
  float sums[ROWS / 2] = {};
  Multiplying<ROWS, STAGES>{stream, sums, uniform(thread / 32), thread % 32}.run(steps);
  wait_for_others(1, 2 * kFillers);  // results take the place of stages that nobody reads any more
  const int w_end = (group + 1) * group_tiles * 32;
  if constexpr (SPLITS == 1)
    write_transposed<ROWS>(sums, memory, out, n, tiles_down * 32, x_first, tile_row * 32, w_end, 1.0f, thread);
  else
    write_sum_of_splits<ROWS, SPLITS, __nv_bfloat16>(sums, memory, out, n, tiles_down * 32, x_first, tile_row * 32, w_end,
                                                     1.0f, rank, thread);
}

}  // namespace thalweg
