// Fetching cached records, and turning their codes into bf16.
//
// A unit is 32 keys of one tile, eight for each warp of a group of 128 threads. The eight neighbouring lanes of a warp
// have different keys, so that they write swizzled rows without bank conflicts, and the four octets of lanes take one
// chunk of the codes of their keys after the other. Fetching a unit only loads it to registers, storing it converts and
// writes. Values are stored times 2^-14, so that the scales of all formats fit bf16: that is exact.

#include "attention_tile.cuh"

namespace thalweg {

// 16 bytes, or zeros without a key; the load is not waited for.
template <int kAlignment>
static __device__ __forceinline__ void fetch_16_bytes(unsigned *words, const unsigned char *from, bool is_key) {
  if constexpr (kAlignment == 16) {
    asm volatile(
        "{ .reg .pred p; setp.ne.b32 p, %5, 0; mov.b32 %0, 0; mov.b32 %1, 0; mov.b32 %2, 0; mov.b32 %3, 0;\n"
        "@p ld.global.nc.v4.b32 {%0, %1, %2, %3}, [%4]; }"
        : "=&r"(words[0]), "=&r"(words[1]), "=&r"(words[2]), "=&r"(words[3])
        : "l"(from), "r"(static_cast<int>(is_key)));
  } else {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if constexpr (kAlignment == 4) {
        words[i] = is_key ? __ldg(reinterpret_cast<const unsigned *>(from) + i) : 0;
      } else {
        const unsigned short *halves = reinterpret_cast<const unsigned short *>(from);
        words[i] = is_key ? __ldg(halves + 2 * i) | static_cast<unsigned>(__ldg(halves + 2 * i + 1)) << 16 : 0;
      }
    }
  }
}

static __device__ __forceinline__ unsigned fetch_2_bytes(const unsigned char *from, bool is_key) {
  unsigned short value;
  asm volatile("{ .reg .pred p; setp.ne.b32 p, %2, 0; mov.b16 %0, 0;\n@p ld.global.nc.b16 %0, [%1]; }"
               : "=&h"(value)
               : "l"(from), "r"(static_cast<int>(is_key)));
  return value;
}

static __device__ __forceinline__ unsigned fetch_byte(const unsigned char *from, bool is_key) {
  unsigned value;
  asm volatile("{ .reg .pred p; setp.ne.b32 p, %2, 0; mov.b32 %0, 0;\n@p ld.global.nc.u8 %0, [%1]; }"
               : "=&r"(value)
               : "l"(from), "r"(static_cast<int>(is_key)));
  return value;
}

static __device__ __forceinline__ unsigned multiply(unsigned a, unsigned b) {
  unsigned product;
  asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(product) : "r"(a), "r"(b));
  return product;
}

// Two equal bf16 of an e4m3 scale, times 2^112: the code as bf16 bits is the scale times 2^-120.
static __device__ __forceinline__ unsigned scale_of_e4m3(unsigned code) {
  const unsigned low = (code & 0x7Fu) << 4;
  return multiply(multiply(low | low << 16, 0x7F007F00u), 0x74007400u);
}

// Two equal bf16 of a power of two, times 2^106. Codes above 148 count as 148.
static __device__ __forceinline__ unsigned scale_of_ue8m0(unsigned code) {
  const unsigned exponent = min(code + 106u, 254u);
  return exponent << 7 | exponent << 23;
}

// Eight e2m1 codes of a word, which as bf16 bits are their values times 2^-126, times a scale.
static __device__ __forceinline__ uint4 decode_e2m1(unsigned codes, unsigned scale) {
  unsigned pairs[4];  // codes 0 and 4, 1 and 5, ...
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const unsigned sign = codes << (12 - 4 * i) & 0x80008000u;
    const unsigned magnitude = (i < 2 ? codes << (6 - 4 * i) : codes >> (4 * i - 6)) & 0x01C001C0u;
    pairs[i] = multiply(sign | magnitude, scale);
  }
  return make_uint4(__byte_perm(pairs[0], pairs[1], 0x5410), __byte_perm(pairs[2], pairs[3], 0x5410),
                    __byte_perm(pairs[0], pairs[1], 0x7632), __byte_perm(pairs[2], pairs[3], 0x7632));
}

// Eight e4m3 codes of two words, which as bf16 bits are their values times 2^-120, times a scale.
static __device__ __forceinline__ uint4 decode_e4m3(unsigned low, unsigned high, unsigned scale) {
  unsigned pairs[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const unsigned spread = __byte_perm(i < 2 ? low : high, 0, i % 2 ? 0x3424 : 0x1404);
    pairs[i] = multiply((spread & 0x80008000u) | (spread >> 4 & 0x07F007F0u), scale);
  }
  return make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
}

// 32 elements, 16 bytes and two e4m3 scales, a lane and step.
template <int kDim, int kAlignment>
struct Fp4Unit {
  static constexpr int kSteps = (kDim + 127) / 128, kWords = 5 * kSteps, kRecord = kDim / 2 + kDim / 16;

  static __device__ __forceinline__ void fetch(unsigned *words, const unsigned char *record, bool is_key) {
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const int chunk = step * 4 + octet();
      const bool is_there = is_key && (kDim % 128 == 0 || chunk < kDim / 32);
      fetch_16_bytes<kAlignment>(words + step * 5, record + chunk * 16, is_there);
      words[step * 5 + 4] = fetch_2_bytes(record + kDim / 2 + 2 * chunk, is_there);
    }
  }

  static __device__ __forceinline__ void store(unsigned tile, int key, const unsigned *words) {
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const int chunk = step * 4 + octet();
      const unsigned codes = words[step * 5 + 4];
      const unsigned scales[2] = {scale_of_e4m3(codes), scale_of_e4m3(codes >> 8)};
      if (kDim % 128 == 0 || chunk < kDim / 32) {
#pragma unroll
        for (int i = 0; i < 4; ++i)
          store_piece(tile, key, chunk * 4 + i, decode_e2m1(words[step * 5 + i], scales[i / 2]));
      }
    }
  }
};

// 16 elements, 16 bytes and the power of two of half a group, a lane and step.
template <int kDim, int kAlignment>
struct Mxfp8Unit {
  static constexpr int kSteps = kDim / 64, kWords = 5 * kSteps, kRecord = kDim + kDim / 32;

  static __device__ __forceinline__ void fetch(unsigned *words, const unsigned char *record, bool is_key) {
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const int chunk = step * 4 + octet();
      fetch_16_bytes<kAlignment>(words + step * 5, record + chunk * 16, is_key);
      words[step * 5 + 4] = fetch_byte(record + kDim + chunk / 2, is_key);
    }
  }

  static __device__ __forceinline__ void store(unsigned tile, int key, const unsigned *words) {
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const int chunk = step * 4 + octet();
      const unsigned scale = scale_of_ue8m0(words[step * 5 + 4]);
#pragma unroll
      for (int i = 0; i < 2; ++i)
        store_piece(tile, key, chunk * 2 + i, decode_e4m3(words[step * 5 + 2 * i], words[step * 5 + 2 * i + 1], scale));
    }
  }
};

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
    const int *main_slots, const float *sink, bfloat16_t *output, int row, int own_list, int heads, float scale, int window_entries,
    long long window_stride, int window_capacity, int main_entries, long long main_stride, int main_capacity) {
  using Keys = CachedKeys<kDim, kWindow, kWindowAlignment, kSelected, kIsFp4, kMainAlignment>;
  const Keys keys{reinterpret_cast<const unsigned char *>(window), reinterpret_cast<const unsigned char *>(main),
                  window_slots + static_cast<long long>(own_list) * kWindow,
                  main_slots + static_cast<long long>(own_list) * kSelected, window_entries, main_entries, window_capacity, main_capacity,
                  window_stride, main_stride};
  const long long first = static_cast<long long>(row) * heads * kDim;
  attend(reinterpret_cast<char *>(memory), keys, queries + first, sink, output + first, heads, scale);
}
}  // namespace thalweg
