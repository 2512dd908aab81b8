// Attention over lists of cached records.

#include "attention_formats.cuh"

namespace thalweg {
// A list of window records, then of records of another format.
template <int kDim_, int kWindow, int kWindowAlignment, int kSelected, bool kIsFp4, int kMainAlignment>
struct CachedKeys {
  using Window = Mxfp8Unit<kDim_, kWindowAlignment>;
  using Main = std::conditional_t<kIsFp4, Fp4Unit<kDim_, kMainAlignment>, Mxfp8Unit<kDim_, kMainAlignment>>;
  static constexpr int kDim = kDim_, kWindowTiles = (kWindow + kTile - 1) / kTile;
  static constexpr int kTiles = kWindowTiles + (kSelected + kTile - 1) / kTile;
  static constexpr float kFactor = 16384.0f;  // undoes the 2^-14 of stored values

  const unsigned char *window, *main;
  const int *window_slots, *main_slots;
  int window_entries, main_entries, window_capacity, main_capacity;
  long long window_stride, main_stride;

  // Where the record of an entry of the list begins, -1: it is no key.
  __device__ __forceinline__ long long place(int entry) const {
    const bool is_window = entry < kWindowTiles * kTile;
    const int within = is_window ? entry : entry - kWindowTiles * kTile;
    const int slot = within < (is_window ? kWindow : kSelected) ? (is_window ? window_slots : main_slots)[within] : -1;
    if (slot < 0 || slot >= (is_window ? window_capacity : main_capacity)) return -1;
    const int entries = is_window ? window_entries : main_entries, page = slot / entries;
    return page * (is_window ? window_stride : main_stride) +
           (slot - page * entries) * (is_window ? Window::kRecord : Main::kRecord);
  }

  // Fill all tiles, by one warp group. Half of the registers hold a unit of the window, or two units of FP4, a tile.
  __device__ __forceinline__ void fill(const Tiles<kDim> &tiles) const {
    unsigned words[2][kMost];
    fetch_window<0>(tiles, 0, words[0]);
    fetch_window<1>(tiles, 0, words[1]);
    for (int tile = 0; tile < kWindowTiles; ++tile) {
      tiles.await_empty(tile);
      const bool is_last = tile + 1 == kWindowTiles;
      Window::store(tiles.address(tile), unit_key(0), words[0]);
      if (!is_last) fetch_window<0>(tiles, tile + 1, words[0]);
      else fetch_first<0>(tiles, words[0]);
      Window::store(tiles.address(tile), unit_key(1), words[1]);
      if (!is_last) fetch_window<1>(tiles, tile + 1, words[1]);
      else fetch_first<1>(tiles, words[1]);
      tiles.hand_over(tile);
    }
    if constexpr (kIsFp4) {
      for (int pair = kWindowTiles; pair < kTiles; pair += 2) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int tile = pair + i;
          if (tile < kTiles) {
            tiles.await_empty(tile);
            Main::store(tiles.address(tile), unit_key(0), words[i]);
            Main::store(tiles.address(tile), unit_key(1), words[i] + Main::kWords);
            tiles.hand_over(tile);
            if (tile + 2 < kTiles) fetch_tile(tiles, tile + 2, words[i]);
          }
        }
      }
    } else {
      for (int tile = kWindowTiles; tile < kTiles; ++tile) {
        tiles.await_empty(tile);
        Main::store(tiles.address(tile), unit_key(0), words[0]);
        if (tile + 1 < kTiles) fetch_main<0>(tiles, tile + 1, words[0]);
        Main::store(tiles.address(tile), unit_key(1), words[1]);
        if (tile + 1 < kTiles) fetch_main<1>(tiles, tile + 1, words[1]);
        tiles.hand_over(tile);
      }
    }
  }

 private:
  static constexpr int kMost = kIsFp4 && 2 * Main::kWords > Window::kWords ? 2 * Main::kWords : Window::kWords;

  template <int kUnit>
  __device__ __forceinline__ void fetch_window(const Tiles<kDim> &tiles, int tile, unsigned *words) const {
    const long long at = tiles.places[tile * kTile + unit_key(kUnit)];
    Window::fetch(words, window + max(at, 0ll), at >= 0);
  }
  template <int kUnit>
  __device__ __forceinline__ void fetch_main(const Tiles<kDim> &tiles, int tile, unsigned *words) const {
    const long long at = tiles.places[tile * kTile + unit_key(kUnit)];
    Main::fetch(words, main + max(at, 0ll), at >= 0);
  }
  __device__ __forceinline__ void fetch_tile(const Tiles<kDim> &tiles, int tile, unsigned *words) const {
    fetch_main<0>(tiles, tile, words);
    fetch_main<1>(tiles, tile, words + Main::kWords);
  }
  // What the loop over selected entries expects to be on its way when it begins.
  template <int kHalf>
  __device__ __forceinline__ void fetch_first(const Tiles<kDim> &tiles, unsigned *words) const {
    if constexpr (kIsFp4) {
      if (kWindowTiles + kHalf < kTiles) fetch_tile(tiles, kWindowTiles + kHalf, words);
    } else {
      if (kWindowTiles < kTiles) fetch_main<kHalf>(tiles, kWindowTiles, words);
    }
  }
};

// One query row and its list.
template <int kDim, int kWindow, int kWindowAlignment, int kSelected, bool kIsFp4, int kMainAlignment>
static __device__ __forceinline__ void paged_attention(
    void *memory, const bfloat16_t *queries, const void *window, const int *window_slots, const void *main,
    const int *main_slots, const float *sink, bfloat16_t *output, int row, int own_list, int heads, float scale,
    int window_entries, long long window_stride, int window_capacity, int main_entries, long long main_stride,
    int main_capacity) {
  using Keys = CachedKeys<kDim, kWindow, kWindowAlignment, kSelected, kIsFp4, kMainAlignment>;
  const Keys keys{reinterpret_cast<const unsigned char *>(window), reinterpret_cast<const unsigned char *>(main),
                  window_slots + static_cast<long long>(own_list) * kWindow,
                  main_slots + static_cast<long long>(own_list) * kSelected, window_entries, main_entries,
                  window_capacity, main_capacity, window_stride, main_stride};
  const long long first = static_cast<long long>(row) * heads * kDim;
  attend(reinterpret_cast<char *>(memory), keys, queries + first, sink, output + first, heads, scale);
}
}  // namespace thalweg
