// Few rows per expert: all of the time goes into fetching the touched weights and bringing them to the tensor cores.
//
// A block stays on its multiprocessor and takes a range of units, 64 weight rows of one tile of rows each. One thread
// fetches packed tiles of 64 x 128 weights into rings. Each group of four warps takes every GROUPS-th of them, from a
// ring of its own: a wait for a barrier knows two phases, and would be wrong about a stage that others had. Codes go
// to registers, two shifts and masks away from e4m3 (exact), and from there into FP8 products with the rows' codes,
// which stay in shared memory as long as the tile of rows is the same. A product covers 32 columns, one group of
// scales; its float32 sum is scaled and added by ordinary arithmetic. The groups' sums of a unit are added in order.

#include "experts_tiles.cuh"

namespace thalweg {

// Eight packed codes as the two words of e4m3 that a lane gives to a product, times 2^-6.
__device__ __forceinline__ uint32_t first_codes(uint32_t word) { return word & 0x9c9c9c9cu; }
__device__ __forceinline__ uint32_t second_codes(uint32_t word) {
  return ((word << 2) & 0x8c8c8c8cu) | ((word >> 2) & 0x10101010u);
}

// 2^(byte - 127) of byte `index` of a word.
__device__ __forceinline__ float scale_of(uint32_t word, int index) {
  return __uint_as_float((index == 3 ? word >> 1 : word << (23 - 8 * index)) & 0x7f800000u);
}

template <int WIDTH, int GROUPS, int STAGES, int STEPS>
struct ExpertDecode {
  static constexpr int kConsumers = GROUPS * 128;
  static constexpr int kOwnSteps = (STEPS + GROUPS - 1) / GROUPS;
  static constexpr int kPartialStride = kTileRows + 4;  // floats; keeps writes of a warp on different banks
  static constexpr int kRowBytes = STEPS * WIDTH * kTileColumns;
  static constexpr int kScaleBytes = STEPS * 4 * WIDTH * 4;
  static constexpr int kRing = STAGES / GROUPS;  // stages of a group
  static constexpr int kRingBytes = STAGES * kTileBytes;
  static constexpr int kPartialBytes = GROUPS * WIDTH * kPartialStride * 4;

  uint8_t* shared;
  uint32_t rows_at, scales_at, ring_at, full_at, empty_at, left_at, free_at;
  float* partials;

  __device__ __forceinline__ explicit ExpertDecode(uint8_t* memory) : shared(memory) {
    rows_at = shared_address(memory);
    scales_at = rows_at + kRowBytes;
    ring_at = scales_at + kScaleBytes;
    partials = reinterpret_cast<float*>(memory + kRowBytes + kScaleBytes + kRingBytes);
    full_at = ring_at + kRingBytes + 2 * kPartialBytes;
    empty_at = full_at + 8 * STAGES;
    left_at = empty_at + 8 * STAGES;
    free_at = left_at + 16;
  }

  __device__ __forceinline__ void init() const {
    if (threadIdx.x == 0) {
      for (int stage = 0; stage < STAGES; ++stage) {
        barrier_init(full_at + 8 * stage, 1);
        barrier_init(empty_at + 8 * stage, 4);
      }
      for (int buffer = 0; buffer < 2; ++buffer) {
        barrier_init(left_at + 8 * buffer, GROUPS * 4);
        barrier_init(free_at + 8 * buffer, 4);
      }
      publish_shared();
    }
    __syncthreads();
  }

  // Where a group is in its ring, and the parity of how often it has been around.
  struct Turn {
    int stage = 0;
    uint32_t phase = 0;
    __device__ __forceinline__ void next() {
      if (++stage == kRing) stage = 0, phase ^= 1;
    }
  };

  __device__ __forceinline__ void fetch(const uint8_t* weights, const int4* table, int blocks, int first,
                                        int last) const {
    Turn turns[GROUPS];
    for (int unit = first; unit < last; ++unit) {
      const int expert = __ldg(&table[unit / blocks].x);
      const uint8_t* from = weights + (int64_t(expert) * blocks + unit % blocks) * (STEPS * kTileBytes);
      for (int step = 0; step < STEPS; step += GROUPS)
#pragma unroll
        for (int group = 0; group < GROUPS; ++group, from += kTileBytes)
          if (step + group < STEPS) {
            const int stage = group * kRing + turns[group].stage;
            barrier_wait(empty_at + 8 * stage, turns[group].phase ^ 1);
            barrier_expect(full_at + 8 * stage, kTileBytes);
            fetch_once(ring_at + stage * kTileBytes, from, kTileBytes, full_at + 8 * stage);
            turns[group].next();
          }
    }
  }

  // This group's columns of the rows of a tile: codes as they are, swizzled, and scales as floats, times 2^6.
  // tokens: which row of codes and scales each sorted row is; nullptr: they are sorted themselves.
  __device__ __forceinline__ void load_rows(const uint8_t* codes, const uint8_t* scales, const int* tokens, int4 tile,
                                            int group, int thread) const {
    constexpr int kChunks = (kOwnSteps * WIDTH * 8 + 127) / 128, kWords = (kOwnSteps * WIDTH + 127) / 128;
    const int row = thread / 8 % WIDTH;
    uint4 chunk[kChunks];
    if (row < tile.z) {
      const int from = tokens ? tokens[tile.y + row] : tile.y + row;
#pragma unroll
      for (int i = 0; i < kChunks; ++i) {
        const int step = group + GROUPS * (i * 16 / WIDTH + thread / 8 / WIDTH);
        if (step < STEPS)
          chunk[i] = *reinterpret_cast<const uint4*>(codes + (int64_t(from) * STEPS + step) * 128 + thread % 8 * 16);
      }
#pragma unroll
      for (int i = 0; i < kChunks; ++i) {
        const int step = group + GROUPS * (i * 16 / WIDTH + thread / 8 / WIDTH);
        if (step < STEPS)
          *reinterpret_cast<uint4*>(shared + (step * WIDTH + row) * 128 + ((thread % 8 ^ row % 8) << 4)) = chunk[i];
      }
    }
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      const int own = (i * 128 + thread) / WIDTH, step = group + GROUPS * own, column = thread % WIDTH;
      if (own < kOwnSteps && step < STEPS) {
        uint32_t word = 0;
        if (column < tile.z) {
          const int from = tokens ? tokens[tile.y + column] : tile.y + column;
          word = *reinterpret_cast<const uint32_t*>(scales + (int64_t(from) * STEPS + step) * 4);
        }
        const int place = WIDTH / 4 * (column % 8 / 2) + column / 8 * 2 + column % 2;  // a lane's columns side by side
        float* to = reinterpret_cast<float*>(shared + kRowBytes) + step * 4 * WIDTH + place;
#pragma unroll
        for (int j = 0; j < 4; ++j) to[j * WIDTH] = __uint_as_float((((word >> (8 * j)) & 0xff) + 6) << 23);
      }
    }
  }

  // What a lane has of one tile of weights.
  struct Weights {
    uint32_t upper[4], lower[4], upper_scales, lower_scales;
  };

  __device__ __forceinline__ Weights take(Turn& turn, int group, int warp, int lane) const {
    const int stage = group * kRing + turn.stage;
    const uint32_t tile = ring_at + stage * kTileBytes + warp * 1024 + lane * 16;
    const uint32_t scales = ring_at + stage * kTileBytes + kCodeBytes + (warp * 16 + lane / 4) * 4;
    barrier_wait(full_at + 8 * stage, turn.phase);
    turn.next();
    const uint4 up = load_shared_16(tile), low = load_shared_16(tile + 512);
    const Weights weights = {{up.x, up.y, up.z, up.w}, {low.x, low.y, low.z, low.w}, load_shared_4(scales),
                             load_shared_4(scales + 32)};
    __syncwarp();
    if (lane == 0) barrier_arrive(empty_at + 8 * stage);
    return weights;
  }

  // Start the products of half a tile of weights, two groups of columns.
  template <int COUNT, int HALF>
  __device__ __forceinline__ void start(float (&part)[2][COUNT / 2], const Weights& weights, int step) const {
    uint32_t a[2][4];
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const uint32_t upper = weights.upper[2 * HALF + j], lower = weights.lower[2 * HALF + j];
      a[j][0] = first_codes(upper), a[j][1] = first_codes(lower);
      a[j][2] = second_codes(upper), a[j][3] = second_codes(lower);
      ready(a[j]);
    }
    const uint64_t rows = row_matrix(rows_at + step * (WIDTH * 128));
    products_begin();
#pragma unroll
    for (int j = 0; j < 2; ++j) product_e4m3<COUNT>(part[j], a[j], rows + 2 * (2 * HALF + j));
    products_commit();
  }

  // Scale the products of half a tile, and add them to sums.
  template <int COUNT, int HALF>
  __device__ __forceinline__ void add(float (&sums)[WIDTH / 2], float (&part)[2][COUNT / 2], const Weights& weights,
                                      int step) const {
    settle(part[0]);
    settle(part[1]);
    const float* factors = reinterpret_cast<const float*>(shared + kRowBytes) + step * 4 * WIDTH;
    factors += threadIdx.x % 4 * (WIDTH / 4);
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      float factor[COUNT / 4];
      if constexpr (COUNT == 8) {
        *reinterpret_cast<float2*>(factor) = *reinterpret_cast<const float2*>(factors + (2 * HALF + j) * WIDTH);
      } else {
        *reinterpret_cast<float4*>(factor) = *reinterpret_cast<const float4*>(factors + (2 * HALF + j) * WIDTH);
      }
      const float upper = scale_of(weights.upper_scales, 2 * HALF + j);
      const float lower = scale_of(weights.lower_scales, 2 * HALF + j);
#pragma unroll
      for (int n = 0; n < COUNT / 8; ++n) {
        sums[4 * n + 0] += part[j][4 * n + 0] * (upper * factor[2 * n]);
        sums[4 * n + 1] += part[j][4 * n + 1] * (upper * factor[2 * n + 1]);
        sums[4 * n + 2] += part[j][4 * n + 2] * (lower * factor[2 * n]);
        sums[4 * n + 3] += part[j][4 * n + 3] * (lower * factor[2 * n + 1]);
      }
    }
  }

  // Add the products of a group's tiles of one unit: while those of one half are scaled, those of the other are formed.
  // Products that go on into the next turn would do more, but the compiler makes them wait for each other.
  template <int COUNT>
  __device__ __forceinline__ void multiply(float (&sums)[WIDTH / 2], Turn& turn, int group, int warp, int lane) const {
    if (group >= STEPS) return;
    Weights weights = take(turn, group, warp, lane);
#pragma unroll 1
    for (int step = group; step < STEPS; step += GROUPS) {
      float first[2][COUNT / 2], second[2][COUNT / 2];
      start<COUNT, 0>(first, weights, step);
      start<COUNT, 1>(second, weights, step);
      Weights next = weights;
      if (step + GROUPS < STEPS) next = take(turn, group, warp, lane);
      products_wait<1>();
      add<COUNT, 0>(sums, first, weights, step);
      products_wait<0>();
      add<COUNT, 1>(sums, second, weights, step);
      weights = next;
    }
  }

  // Where sums of a unit go.
  struct Place {
    __nv_bfloat16* out;
    int rows, turn;
  };

  // Leave a group's sums of a unit for the one that adds them, two units behind.
  __device__ __forceinline__ void leave(const float (&sums)[WIDTH / 2], int turn, int group, int warp, int lane) const {
    const int buffer = turn % 2;
    float* mine = partials + (buffer * GROUPS + group) * WIDTH * kPartialStride;
    mine += lane % 4 * 2 * kPartialStride + warp * 16 + lane / 4;
    if (turn >= 2) barrier_wait(free_at + 8 * buffer, (turn / 2 - 1) & 1);
#pragma unroll
    for (int n = 0; n < WIDTH / 8; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) mine[(n * 8 + i % 2) * kPartialStride + i / 2 * 8] = sums[4 * n + i];
    __syncwarp();
    if (lane == 0) barrier_arrive(left_at + 8 * buffer);
  }

  // Add what the groups left, in their order, and write the rows that there are.
  __device__ __forceinline__ void collect(const Place& place, int out_rows, int thread) const {
    const int buffer = place.turn % 2;
    const float* from = partials + buffer * GROUPS * WIDTH * kPartialStride + thread % 32 * 2;
    barrier_wait(left_at + 8 * buffer, place.turn / 2 & 1);
    for (int row = thread / 32; row < place.rows; row += 4) {
      float2 total = {0, 0};
#pragma unroll
      for (int g = 0; g < GROUPS; ++g) {
        const float2 one = *reinterpret_cast<const float2*>(from + (g * WIDTH + row) * kPartialStride);
        total.x += one.x, total.y += one.y;
      }
      *reinterpret_cast<__nv_bfloat162*>(place.out + int64_t(row) * out_rows + thread % 32 * 2) =
          __float22bfloat162_rn(total);
    }
    __syncwarp();
    if (thread % 32 == 0) barrier_arrive(free_at + 8 * buffer);
  }

  __device__ __forceinline__ void run(const uint8_t* codes, const uint8_t* scales, const uint8_t* weights,
                                      const int4* table, const int* num_tiles, const int* tokens, __nv_bfloat16* out,
                                      int blocks) const {
    init();
    const int64_t units = int64_t(*num_tiles) * blocks;
    const int first = units * blockIdx.x / gridDim.x, last = units * (blockIdx.x + 1) / gridDim.x;
    const int group = uniform(threadIdx.x / 128), warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
    if (group == GROUPS) {
      give_registers();
      if (threadIdx.x == kConsumers) fetch(weights, table, blocks, first, last);
      return;
    }
    take_registers<GROUPS>();
    const int out_rows = blocks * kTileRows;
    int4 tile = {-1, 0, 0, 0};
    Place place = {nullptr, 0, 0};
    Turn ring;
    int known = -1;
    for (int unit = first; unit < last; ++unit) {
      if (unit / blocks != known) {
        known = unit / blocks;
        tile = __ldg(&table[known]);
        tile.z = uniform(tile.z);
        wait_for_others(1 + group, 128);
        load_rows(codes, scales, tokens, tile, group, threadIdx.x % 128);
        publish_shared();
        wait_for_others(1 + group, 128);
      }
      const int turn = unit - first;
      float sums[WIDTH / 2] = {};
      if (WIDTH > 8 && tile.z <= 8) multiply<8>(sums, ring, group, warp, lane);
      else multiply<WIDTH>(sums, ring, group, warp, lane);
      // Groups take turns in adding up, after their own part of the next unit: nobody waits for anybody.
      if (turn > 0 && place.turn % GROUPS == group) collect(place, out_rows, threadIdx.x % 128);
      leave(sums, turn, group, warp, lane);
      place = {out + int64_t(tile.y) * out_rows + unit % blocks * kTileRows, tile.z, turn};
    }
    if (first < last && place.turn % GROUPS == group) collect(place, out_rows, threadIdx.x % 128);
  }
};

template <int WIDTH, int GROUPS, int STAGES, int STEPS>
__device__ __forceinline__ void expert_decode(void* shared, const void* codes, const void* scales, const void* weights,
                                              const void* table, const void* num_tiles, const void* tokens, void* out,
                                              int blocks, bool gather) {
  ExpertDecode<WIDTH, GROUPS, STAGES, STEPS>(static_cast<uint8_t*>(shared))
      .run(static_cast<const uint8_t*>(codes), static_cast<const uint8_t*>(scales),
                            static_cast<const uint8_t*>(weights), static_cast<const int4*>(table),
                            static_cast<const int*>(num_tiles), gather ? static_cast<const int*>(tokens) : nullptr,
                            static_cast<__nv_bfloat16*>(out), blocks);
}

}  // namespace thalweg
