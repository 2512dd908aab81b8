// Attention over listed rows of a table of bf16 keys.

#include "attention_tile.cuh"

namespace thalweg {
template <int kDim_, int kWidth, class Index>
struct TableKeys {
  static constexpr int kDim = kDim_, kTiles = (kWidth + kTile - 1) / kTile;
  static constexpr float kFactor = 1;

  const char *table;
  const Index *indices;
  int num_keys;

  __device__ __forceinline__ long long place(int entry) const {
    const Index index = entry < kWidth ? indices[entry] : -1;
    return index < 0 || index >= num_keys ? -1 : static_cast<long long>(index) * (kDim * 2);
  }

  __device__ __forceinline__ void fill(const Tiles<kDim> &tiles) const {
    for (int tile = 0; tile < kTiles; ++tile) {
      tiles.await_empty(tile);
#pragma unroll
      for (int unit = 0; unit < 2; ++unit) {
        const long long at = tiles.places[tile * kTile + unit_key(unit)];
        const char *row = table + max(at, 0ll);
#pragma unroll
        for (int step = 0; step < kDim / 32; ++step) {
          const int piece = step * 4 + octet();
          copy_piece(tiles.address(tile), unit_key(unit), piece, row + piece * 16, at >= 0);
        }
      }
      await_copies();
      tiles.hand_over(tile);
    }
  }
};

// Up to 64 heads, from first_head on, of one query row.
template <int kDim, int kWidth, class Index>
static __device__ __forceinline__ void table_attention(void *memory, const bfloat16_t *queries, const bfloat16_t *table,
                                                       const Index *indices, const float *sink, bfloat16_t *output,
                                                       long long row, int first_head, int heads, int num_keys,
                                                       float scale) {
  const TableKeys<kDim, kWidth, Index> keys{reinterpret_cast<const char *>(table), indices + row * kWidth, num_keys};
  const long long first = (row * heads + first_head) * kDim;
  attend(reinterpret_cast<char *>(memory), keys, queries + first, sink == nullptr ? nullptr : sink + first_head,
         output + first, min(heads - first_head, kHeads), scale);
}
}  // namespace thalweg
