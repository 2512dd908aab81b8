// A query row, its list of keys in tiles, and the three warp groups of a block that they go through.
//
// - The first warp group multiplies queries and keys, makes masses of the logits, and sums the left half of
//   the columns.
// - The second one sums the right half.
// - The third one fills tiles, of which two are in shared memory.
//
// Keys are the values too, so a tile serves twice. The order of all sums is that of the list.

#include "attention_instructions.cuh"

namespace thalweg {
// What is in shared memory.
template <int kDim>
struct Tiles {
  static constexpr int kColumns = (kDim + 127) / 128 * 128;
  static constexpr int kTileBytes = kTile * kColumns * 2, kMassBytes = kHeads * kTile * 2;
  // Bytes in all, for lists of so many tiles.
  static constexpr int bytes(int tiles) { return 3 * kTileBytes + 2 * kMassBytes + 832 + tiles * (kTile * 8 + 8); }

  unsigned queries;     // [64, kColumns], later the output
  unsigned keys;        // 2 tiles
  unsigned masses;      // 2 of [64, 64]
  float *decays;        // 2 of [64]
  float *weights;       // [64] of the sums, in the end
  unsigned barriers;    // full, ready, empty: 2 each; finished
  unsigned *masks;      // [tiles, 2] which entries are keys
  long long *places;    // [tiles * 64] where keys begin, -1: none

  __device__ __forceinline__ Tiles(char *memory, int tiles) {
    queries = shared_address(memory);
    keys = queries + kTileBytes;
    masses = keys + 2 * kTileBytes;
    char *rest = memory + 3 * kTileBytes + 2 * kMassBytes;
    decays = reinterpret_cast<float *>(rest);
    weights = decays + 2 * kHeads;
    barriers = shared_address(rest + 768);
    places = reinterpret_cast<long long *>(rest + 832);
    masks = reinterpret_cast<unsigned *>(rest + 832 + tiles * kTile * 8);
  }
  __device__ __forceinline__ unsigned address(int tile) const { return keys + tile % 2 * kTileBytes; }
  __device__ __forceinline__ unsigned full(int tile) const { return barriers + tile % 2 * 8; }
  __device__ __forceinline__ unsigned ready(int tile) const { return barriers + 16 + tile % 2 * 8; }
  __device__ __forceinline__ unsigned empty(int tile) const { return barriers + 32 + tile % 2 * 8; }
  __device__ __forceinline__ unsigned finished() const { return barriers + 48; }
  __device__ __forceinline__ void await_empty(int tile) const {
    if (tile >= 2) await(empty(tile), (tile / 2 - 1) % 2);
  }
  __device__ __forceinline__ void hand_over(int tile) const {
    publish();
    arrive(full(tile));
  }
};

// By the second and third warp group: the places of all entries, and which of them are keys.
template <class Shared, class Keys>
static __device__ __forceinline__ void find_places(const Shared &tiles, const Keys &list, int num_tiles) {
  for (int entry = threadIdx.x - kGroup; entry < num_tiles * kTile; entry += 2 * kGroup) {
    const long long place = list.place(entry);
    tiles.places[entry] = place;
    const unsigned mask = __ballot_sync(0xFFFFFFFFu, place >= 0);
    if (threadIdx.x % 32 == 0) tiles.masks[entry / 32] = mask;
  }
  group_barrier(2, 2 * kGroup);
}

// By a warp group: its half of the columns, through the memory of the queries, which nobody reads any more.
template <int kDim>
static __device__ __forceinline__ void write_half(const Tiles<kDim> &tiles, float *sums, const float *weight, int which,
                                                  bfloat16_t *output, int heads) {
  constexpr int kHalf = Tiles<kDim>::kColumns / 2, kPieces = kHalf / 8;
  const int thread = threadIdx.x % kGroup, warp = thread / 32, lane = thread % 32;
#pragma unroll
  for (int i = 0; i < kHalf / 16; ++i) {
    unsigned pairs[4];
#pragma unroll
    for (int j = 0; j < 4; ++j)
      pairs[j] = pair_of(sums[8 * i + 2 * j] * weight[j % 2], sums[8 * i + 2 * j + 1] * weight[j % 2]);
    const unsigned to = piece_address(tiles.queries, warp * 16 + lane % 16, which * kPieces + i * 2 + lane / 16);
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(pairs[0]),
                 "r"(pairs[1]), "r"(pairs[2]), "r"(pairs[3])
                 : "memory");
  }
  __syncwarp();
  for (int i = lane; i < 16 * kPieces; i += 32) {
    const int row = warp * 16 + i / kPieces, piece = which * kPieces + i % kPieces;
    uint4 values;
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(values.x), "=r"(values.y), "=r"(values.z), "=r"(values.w)
                 : "r"(piece_address(tiles.queries, row, piece)));
    if (row < heads && piece * 8 < kDim) *reinterpret_cast<uint4 *>(output + row * kDim + piece * 8) = values;
  }
}

// One query row. queries, output: [heads, kDim] of it; sink: [heads].
template <class Keys>
static __device__ __forceinline__ void attend(char *memory, const Keys &list, const bfloat16_t *queries,
                                              const float *sink, bfloat16_t *output, int heads, float scale) {
  constexpr int kDim = Keys::kDim, kTiles = Keys::kTiles;
  using Shared = Tiles<kDim>;
  constexpr int kColumns = Shared::kColumns, kHalf = kColumns / 2, kSums = kHalf / 2;
  const Shared tiles(memory, kTiles);
  const int group = __shfl_sync(0xFFFFFFFFu, threadIdx.x / kGroup, 0);
  const int thread = threadIdx.x % kGroup, warp = thread / 32, lane = thread % 32;
  const int first_row = warp * 16 + lane / 4;
  if (threadIdx.x == 0) {
    for (int i = 0; i < 2; ++i) {
      init_barrier(tiles.full(i), 4);
      init_barrier(tiles.ready(i), 4);
      init_barrier(tiles.empty(i), 8);
    }
    init_barrier(tiles.finished(), 4);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  if constexpr (kColumns > kDim) {  // no key writes the columns that pad it
    for (int i = threadIdx.x; i < 2 * kTile * 8; i += 3 * kGroup)
      store_piece(tiles.address(i / (kTile * 8)), i / 8 % kTile, kDim / 8 + i % 8, make_uint4(0, 0, 0, 0));
    publish();
  }
  __syncthreads();

  if (group == 0) {
    more_registers<208>();
    for (int i = thread; i < kHeads * kDim / 8; i += kGroup) {
      const int row = i / (kDim / 8), piece = i % (kDim / 8);
      copy_piece(tiles.queries, row, piece, queries + (row < heads ? i * 8 : 0), row < heads);
    }
    await_copies();
    publish();
    group_barrier(1, kGroup);
    float logits[32], sums[kSums], level[2] = {-1e30f, -1e30f}, total[2] = {0, 0};
    unsigned masses[16];
#pragma unroll
    for (int i = 0; i < kSums; ++i) sums[i] = 0;
    const float exponent = scale * (1.44269504f * Keys::kFactor);
    for (int tile = 0; tile <= kTiles; ++tile) {
      if (tile > 0) {  // masses are those of the tile before
        const uint64_t values = descriptor(tiles.address(tile - 1), kTile * 128);
        fence_registers(sums, kSums);
        begin_products();
#pragma unroll
        for (int k = 0; k < 4; ++k)
          tl::wgmma_rs<kBf16, kBf16, kFloat, 64, kHalf, 16, false, true, 1, 1>(
              masses + 4 * k, advance(values, k * 2048), reinterpret_cast<uint32_t *>(sums), true);
        end_products();
      }
      if (tile == kTiles) break;
      await(tiles.full(tile), tile / 2 % 2);
      const uint64_t rows = descriptor(tiles.queries, 16), keys = descriptor(tiles.address(tile), 16);
      fence_registers(logits, 32);
      begin_products();
#pragma unroll
      for (int k = 0; k < kDim / 16; ++k)
        tl::wgmma_ss<kBf16, kBf16, kFloat, 64, 64, 16, false, false, 1, 1>(
            advance(rows, k / 4 * (kTile * 128) + k % 4 * 32), advance(keys, k / 4 * (kTile * 128) + k % 4 * 32),
            reinterpret_cast<uint32_t *>(logits), k > 0);
      end_products();
      if (tile > 0) {
        await_products<1>();
        arrive(tiles.empty(tile - 1));
      }
      await_products<0>();
      fence_registers(logits, 32);
      fence_registers(sums, kSums);
      const unsigned low = tiles.masks[tile * 2], high = tiles.masks[tile * 2 + 1];
      if ((low & high) != 0xFFFFFFFFu) {
#pragma unroll
        for (int i = 0; i < 32; ++i) {
          const int column = i / 4 * 8 + lane % 4 * 2 + i % 2;
          if (((column < 32 ? low : high) >> (column % 32) & 1) == 0) logits[i] = -INFINITY;
        }
      }
      float decay[2];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float peak = -INFINITY;
#pragma unroll
        for (int i = 0; i < 8; ++i) peak = fmaxf(peak, fmaxf(logits[i * 4 + half * 2], logits[i * 4 + half * 2 + 1]));
        peak = fmaxf(peak, __shfl_xor_sync(0xFFFFFFFFu, peak, 1));
        peak = fmaxf(peak, __shfl_xor_sync(0xFFFFFFFFu, peak, 2)) * exponent;
        const float next = peak > level[half] + 8 ? peak : level[half];
        decay[half] = power_of_2(level[half] - next);
        level[half] = next;
      }
#pragma unroll
      for (int i = 0; i < 32; ++i) logits[i] = power_of_2(fmaf(logits[i], exponent, -level[i / 2 % 2]));
#pragma unroll
      for (int i = 0; i < 16; ++i) masses[i] = pair_of(logits[2 * i], logits[2 * i + 1]);
      const unsigned there = tiles.masses + tile % 2 * Shared::kMassBytes;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int row = warp * 16 + lane % 16, piece = i * 2 + lane / 16;
        asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(
                         piece_address(there, row, piece)),
                     "r"(masses[4 * i]), "r"(masses[4 * i + 1]), "r"(masses[4 * i + 2]), "r"(masses[4 * i + 3])
                     : "memory");
      }
      if (lane % 4 == 0) {
        tiles.decays[tile % 2 * 64 + first_row] = decay[0];
        tiles.decays[tile % 2 * 64 + first_row + 8] = decay[1];
      }
      publish();
      arrive(tiles.ready(tile));
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float part = 0;
#pragma unroll
        for (int i = 0; i < 8; ++i) part += logits[i * 4 + half * 2] + logits[i * 4 + half * 2 + 1];
        total[half] = total[half] * decay[half] + part;
      }
      if (__any_sync(0xFFFFFFFFu, decay[0] < 1 || decay[1] < 1)) {
#pragma unroll
        for (int i = 0; i < kSums; ++i) sums[i] *= decay[i / 2 % 2];
      }
    }
    float weight[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      total[half] += __shfl_xor_sync(0xFFFFFFFFu, total[half], 1);
      total[half] += __shfl_xor_sync(0xFFFFFFFFu, total[half], 2);
      const int row = first_row + half * 8;
      const float sunk = row < heads && sink != nullptr ? exp2f(sink[row] * 1.44269504f - level[half]) : 0;
      weight[half] = total[half] > 0 ? Keys::kFactor / (total[half] + sunk) : 0;
      if (lane % 4 == 0) tiles.weights[row] = weight[half];
    }
    arrive(tiles.finished());
    await_products<0>();
    fence_registers(sums, kSums);
    write_half<kDim>(tiles, sums, weight, 0, output, heads);
  } else if (group == 1) {
    fewer_registers<160>();
    find_places(tiles, list, kTiles);
    float sums[kSums];
#pragma unroll
    for (int i = 0; i < kSums; ++i) sums[i] = 0;
    for (int tile = 0; tile < kTiles; ++tile) {
      await(tiles.full(tile), tile / 2 % 2);
      await(tiles.ready(tile), tile / 2 % 2);
      const float decay[2] = {tiles.decays[tile % 2 * 64 + first_row], tiles.decays[tile % 2 * 64 + first_row + 8]};
      if (__any_sync(0xFFFFFFFFu, decay[0] < 1 || decay[1] < 1)) {
#pragma unroll
        for (int i = 0; i < kSums; ++i) sums[i] *= decay[i / 2 % 2];
      }
      const uint64_t masses = descriptor(tiles.masses + tile % 2 * Shared::kMassBytes, 16);
      const uint64_t values = descriptor(tiles.address(tile) + kHalf / 64 * (kTile * 128), kTile * 128);
      fence_registers(sums, kSums);
      begin_products();
#pragma unroll
      for (int k = 0; k < 4; ++k)
        tl::wgmma_ss<kBf16, kBf16, kFloat, 64, kHalf, 16, false, true, 1, 1>(
            advance(masses, k * 32), advance(values, k * 2048), reinterpret_cast<uint32_t *>(sums), true);
      end_products();
      await_products<0>();
      fence_registers(sums, kSums);
      arrive(tiles.empty(tile));
    }
    await(tiles.finished(), 0);
    const float weight[2] = {tiles.weights[first_row], tiles.weights[first_row + 8]};
    write_half<kDim>(tiles, sums, weight, 1, output, heads);
  } else {
    fewer_registers<136>();
    find_places(tiles, list, kTiles);
    list.fill(tiles);
  }
}
}  // namespace thalweg
