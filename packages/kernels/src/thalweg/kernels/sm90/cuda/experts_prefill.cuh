// Many rows per expert: the tensor cores, in bfloat16, take most of the time.
//
// A block stays on its multiprocessor and takes every gridDim-th unit, BLOCKS * 64 weight rows of one tile of rows.
// One thread fetches packed weights and, already in bfloat16, columns of the rows into a ring, and goes on into the
// next unit. Each group of four warps brings 64 weight rows to bfloat16 in registers, one part of a stage while the
// products of the part before are running. How many rows a tile has decides the width of products, not the order of
// any sum.

#include "experts_tiles.cuh"

namespace thalweg {

// Pairs of bfloat16, times 2^-126, from words of eight codes: of the first codes in bytes 0 and 2, in 1 and 3 ...
__device__ __forceinline__ uint32_t first_even(uint32_t word) {
  return ((word << 8) & 0x80008000u) | ((word << 4) & 0x01c001c0u);
}
__device__ __forceinline__ uint32_t first_odd(uint32_t word) {
  return (word & 0x80008000u) | ((word >> 4) & 0x01c001c0u);
}
// ... and of the second codes.
__device__ __forceinline__ uint32_t second_even(uint32_t word) {
  return ((word << 10) & 0x80008000u) | ((word << 2) & 0x01000100u) | ((word << 6) & 0x00c000c0u);
}
__device__ __forceinline__ uint32_t second_odd(uint32_t word) {
  return ((word << 2) & 0x80008000u) | ((word >> 6) & 0x01000100u) | ((word >> 2) & 0x00c000c0u);
}

// 2^(byte - 127 + 126), twice, of byte `index` of a word; exact up to 128.
__device__ __forceinline__ uint32_t pair_factor(uint32_t word, int index) {
  return __byte_perm(word, 0, 0x4040 | index << 8 | index) * 128 + 126 * 0x00800080u;
}

__device__ __forceinline__ uint32_t times(uint32_t pair, uint32_t factor) {
  uint32_t product;
  asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(product) : "r"(pair), "r"(factor));
  return product;
}

__device__ __forceinline__ uint32_t transposed(uint32_t pair) {
  uint32_t result;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(result) : "r"(pair));
  return result;
}

// sums [64 x WIDTH] = or += weights [64 x 16] * rows [WIDTH x 16].
template <int WIDTH>
__device__ __forceinline__ void product(float* sums, const uint32_t (&a)[4], uint64_t rows, bool adds) {
  using tl::DataType;
  tl::wgmma_rs<DataType::kBFloat16, DataType::kBFloat16, DataType::kFloat32, 64, WIDTH, 16, false, false>(
      a, rows, reinterpret_cast<uint32_t*>(sums), adds);
}

template <int MAX_WIDTH, int BLOCKS, int PARTS, int STAGES, int STEPS>
struct ExpertPrefill {
  static constexpr int kConsumers = BLOCKS * 128;
  static constexpr int kSteps = 8 / PARTS;  // products of 16 columns in each part of a stage
  static constexpr int kRowBytes = MAX_WIDTH * 128;  // of 64 columns
  static constexpr int kStageBytes = (2 * kRowBytes + BLOCKS * kTileBytes + 1023) / 1024 * 1024;

  uint32_t ring_at, full_at, empty_at;

  __device__ __forceinline__ explicit ExpertPrefill(uint8_t* memory) {
    ring_at = shared_address(memory);
    full_at = ring_at + STAGES * kStageBytes;
    empty_at = full_at + 8 * STAGES;
  }

  __device__ __forceinline__ void init() const {
    if (threadIdx.x == 0) {
      for (int stage = 0; stage < STAGES; ++stage) {
        barrier_init(full_at + 8 * stage, 1);
        barrier_init(empty_at + 8 * stage, BLOCKS * 4);
      }
      publish_shared();
    }
    __syncthreads();
  }

  // Products are of half of the width, and of two more quarters where there are rows. The compiler would let products
  // of several widths in one kernel wait for each other.
  __device__ static __forceinline__ int width_of(int rows) {
    return rows > MAX_WIDTH * 3 / 4 ? MAX_WIDTH : rows > MAX_WIDTH / 2 ? MAX_WIDTH * 3 / 4 : MAX_WIDTH / 2;
  }

  __device__ __forceinline__ void fetch(const uint8_t* rows, const uint8_t* weights, const int4* table, int blocks,
                                        int units, int64_t places) const {
    int stage = 0;
    uint32_t phase = 1;
    const int parts = blocks / BLOCKS;
    for (int unit = blockIdx.x; unit < units; unit += gridDim.x) {
      const int4 tile = __ldg(&table[unit / parts]);
      const int bytes = width_of(tile.z) * 128;
      const uint8_t* from = weights + (int64_t(tile.x) * blocks + unit % parts * BLOCKS) * (STEPS * kTileBytes);
      const uint8_t* columns = rows + int64_t(tile.w) * 128;
      for (int step = 0; step < STEPS; ++step) {
        const uint32_t to = ring_at + stage * kStageBytes, full = full_at + 8 * stage;
        barrier_wait(empty_at + 8 * stage, phase);
        barrier_expect(full, 2 * bytes + BLOCKS * kTileBytes);
#pragma unroll
        for (int half = 0; half < 2; ++half, columns += places * 128)
          fetch_again(to + half * kRowBytes, columns, bytes, full);
#pragma unroll
        for (int block = 0; block < BLOCKS; ++block)
          fetch_again(to + 2 * kRowBytes + block * kTileBytes, from + (block * STEPS + step) * kTileBytes, kTileBytes,
                      full);
        if (++stage == STAGES) stage = 0, phase ^= 1;
      }
    }
  }

  // Multiply 64 weight rows by the rows of a tile, and write these.
  __device__ __forceinline__ void multiply(int& stage, uint32_t& phase, __nv_bfloat16* out, int64_t out_rows, int rows,
                                           int group, int warp, int lane) const {
    float sums[MAX_WIDTH / 2];
    uint32_t a[2][kSteps][4];
    int last_stage = -1;
#pragma unroll 1
    for (int step = 0; step < STEPS; ++step) {
      barrier_wait(full_at + 8 * stage, phase);
      const uint32_t at = ring_at + stage * kStageBytes, tile = at + 2 * kRowBytes + group * kTileBytes;
      const uint4 upper = load_shared_16(tile + warp * 1024 + lane * 16);
      const uint4 lower = load_shared_16(tile + warp * 1024 + 512 + lane * 16);
      const uint32_t upper_scales = load_shared_4(tile + kCodeBytes + (warp * 16 + lane / 4) * 4);
      const uint32_t lower_scales = load_shared_4(tile + kCodeBytes + (warp * 16 + 8 + lane / 4) * 4);
      const uint32_t u[4] = {upper.x, upper.y, upper.z, upper.w}, l[4] = {lower.x, lower.y, lower.z, lower.w};
#pragma unroll
      for (int part = 0; part < PARTS; ++part) {
        // The products before last are done with these registers, and in the second part with all of the stage before.
        products_wait<1>();
        if (part == 1 && last_stage >= 0 && lane == 0) barrier_arrive(empty_at + 8 * last_stage);
        uint32_t(&mine)[kSteps][4] = a[part % 2];
#pragma unroll
        for (int j = 0; j < kSteps / 2; ++j) {
          const int word = part * (kSteps / 2) + j;
          const uint32_t up = pair_factor(upper_scales, word), low = pair_factor(lower_scales, word);
          mine[2 * j][0] = times(first_even(u[word]), up), mine[2 * j][1] = times(first_even(l[word]), low);
          mine[2 * j][2] = times(first_odd(u[word]), up), mine[2 * j][3] = times(first_odd(l[word]), low);
          mine[2 * j + 1][0] = times(second_even(u[word]), up), mine[2 * j + 1][1] = times(second_even(l[word]), low);
          mine[2 * j + 1][2] = times(second_odd(u[word]), up), mine[2 * j + 1][3] = times(second_odd(l[word]), low);
        }
#pragma unroll
        for (int k = 0; k < kSteps; ++k) ready(mine[k]);
        products_begin();
#pragma unroll
        for (int k = 0; k < kSteps; ++k) {
          const int at_step = part * kSteps + k;
          const uint64_t matrix = row_matrix(at + at_step / 4 * kRowBytes) + at_step % 4 * 2;
          const bool adds = step + at_step > 0;
          product<MAX_WIDTH / 2>(sums, mine[k], matrix, adds);
          if (rows > MAX_WIDTH / 2)
            product<MAX_WIDTH / 4>(sums + MAX_WIDTH / 4, mine[k], matrix + kRowBytes / 32, adds);
          if (rows > MAX_WIDTH * 3 / 4)
            product<MAX_WIDTH / 4>(sums + MAX_WIDTH * 3 / 8, mine[k], matrix + kRowBytes * 3 / 64, adds);
        }
        products_commit();
      }
      last_stage = stage;
      if (++stage == STAGES) stage = 0, phase ^= 1;
    }
    products_wait<0>();
    if (lane == 0) barrier_arrive(empty_at + 8 * last_stage);
    settle(sums);

    // A lane has two rows' columns of two weight rows; transposed, one row's neighbouring weight rows.
    out += group * kTileRows + warp * 16 + lane % 4 * 2;
#pragma unroll
    for (int n = 0; n < MAX_WIDTH / 8; ++n) {
      const int row = n * 8 + lane / 4;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const __nv_bfloat162 pair = __floats2bfloat162_rn(sums[4 * n + 2 * half], sums[4 * n + 2 * half + 1]);
        const uint32_t both = transposed(*reinterpret_cast<const uint32_t*>(&pair));
        if (row < rows) *reinterpret_cast<uint32_t*>(out + row * out_rows + half * 8) = both;
      }
    }
  }

  __device__ __forceinline__ void run(const uint8_t* rows, const uint8_t* weights, const int4* table,
                                      const int* num_tiles, __nv_bfloat16* out, int blocks, int64_t places) const {
    init();
    const int parts = blocks / BLOCKS, units = *num_tiles * parts;
    const int group = uniform(threadIdx.x / 128), warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
    if (group == BLOCKS) {
      give_registers();
      if (threadIdx.x == kConsumers) fetch(rows, weights, table, blocks, units, places);
      return;
    }
    take_registers<BLOCKS>();
    const int64_t out_rows = int64_t(blocks) * kTileRows;
    int stage = 0;
    uint32_t phase = 0;
    for (int unit = blockIdx.x; unit < units; unit += gridDim.x) {
      const int4 tile = __ldg(&table[unit / parts]);
      __nv_bfloat16* to = out + tile.y * out_rows + unit % parts * BLOCKS * kTileRows;
      multiply(stage, phase, to, out_rows, uniform(tile.z), group, warp, lane);
    }
  }
};

template <int MAX_WIDTH, int BLOCKS, int PARTS, int STAGES, int STEPS>
__device__ __forceinline__ void expert_prefill(void* shared, const void* rows, const void* weights, const void* table,
                                               const void* num_tiles, void* out, int blocks, int64_t places) {
  ExpertPrefill<MAX_WIDTH, BLOCKS, PARTS, STAGES, STEPS>(static_cast<uint8_t*>(shared))
      .run(static_cast<const uint8_t*>(rows), static_cast<const uint8_t*>(weights), static_cast<const int4*>(table),
           static_cast<const int*>(num_tiles), static_cast<__nv_bfloat16*>(out), blocks, places);
}

}  // namespace thalweg
