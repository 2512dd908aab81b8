// Device functions that bring keys of attention into shared memory as bfloat16, from cached records or a table.
//
// A tile is 64 keys of kDim columns, in panels of 64 columns; the 16-byte pieces of a row of a panel are swizzled by the
// row, as TileLang's full-bank swizzle has it. Eight warps take eight keys each. The eight lanes of a group have
// different keys, so that they write without bank conflicts, and the four groups take one piece of the bytes of their
// keys after the other. Each kind of record has a fetch, which only loads to registers, and a store, which converts and
// writes. Stored values are those of the record times 2^-14, so that the scales of all formats fit bfloat16; that is
// exact, and undone in the logits and in the sums.

namespace thalweg {
constexpr int kTile = 64;

static __device__ __forceinline__ int key_of_thread() { return threadIdx.x / 32 * 8 + threadIdx.x % 8; }
static __device__ __forceinline__ int group_of_thread() { return threadIdx.x % 32 / 8; }

static __device__ __forceinline__ uint4 *piece_of_tile(void *tile, int key, int piece) {
  char *panel = reinterpret_cast<char *>(tile) + piece / 8 * (kTile * 128);
  return reinterpret_cast<uint4 *>(panel + key * 128 + ((piece ^ key) & 7) * 16);
}

template <int kAlignment>
static __device__ __forceinline__ void fetch_16_bytes(unsigned *words, const unsigned char *from) {
  if constexpr (kAlignment == 16) {
    const uint4 all = __ldg(reinterpret_cast<const uint4 *>(from));
    words[0] = all.x, words[1] = all.y, words[2] = all.z, words[3] = all.w;
  } else {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if constexpr (kAlignment == 4) {
        words[i] = __ldg(reinterpret_cast<const unsigned *>(from) + i);
      } else {
        const unsigned short *halves = reinterpret_cast<const unsigned short *>(from);
        words[i] = __ldg(halves + 2 * i) | static_cast<unsigned>(__ldg(halves + 2 * i + 1)) << 16;
      }
    }
  }
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

// words: 4 of codes and 1 with both scales, for every 128 columns.
template <int kDim, int kAlignment>
static __device__ __forceinline__ void fetch_fp4(unsigned *words, const unsigned char *record) {
#pragma unroll
  for (int step = 0; step < (kDim + 127) / 128; ++step) {
    const int chunk = step * 4 + group_of_thread();
    if (kDim % 128 == 0 || chunk < kDim / 32) {
      fetch_16_bytes<kAlignment>(words + step * 5, record + chunk * 16);
      words[step * 5 + 4] = __ldg(reinterpret_cast<const unsigned short *>(record + kDim / 2) + chunk);
    }
  }
}

template <int kDim>
static __device__ __forceinline__ void store_fp4(void *tile, const unsigned *words, bool is_key) {
#pragma unroll
  for (int step = 0; step < (kDim + 127) / 128; ++step) {
    const int chunk = step * 4 + group_of_thread();
    if (kDim % 128 == 0 || chunk < kDim / 32) {
      const unsigned codes = words[step * 5 + 4];
      const unsigned scales[2] = {scale_of_e4m3(codes), scale_of_e4m3(codes >> 8)};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const uint4 values = decode_e2m1(words[step * 5 + i], scales[i / 2]);
        *piece_of_tile(tile, key_of_thread(), chunk * 4 + i) = is_key ? values : make_uint4(0, 0, 0, 0);
      }
    }
  }
}

// words: 4 of codes and 1 with the scale, for every 64 columns.
template <int kDim, int kAlignment>
static __device__ __forceinline__ void fetch_mxfp8(unsigned *words, const unsigned char *record) {
#pragma unroll
  for (int step = 0; step < kDim / 64; ++step) {
    const int chunk = step * 4 + group_of_thread();
    fetch_16_bytes<kAlignment>(words + step * 5, record + chunk * 16);
    words[step * 5 + 4] = __ldg(record + kDim + chunk / 2);
  }
}

template <int kDim>
static __device__ __forceinline__ void store_mxfp8(void *tile, const unsigned *words, bool is_key) {
#pragma unroll
  for (int step = 0; step < kDim / 64; ++step) {
    const int chunk = step * 4 + group_of_thread();
    const unsigned scale = scale_of_ue8m0(words[step * 5 + 4]);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint4 values = decode_e4m3(words[step * 5 + 2 * i], words[step * 5 + 2 * i + 1], scale);
      *piece_of_tile(tile, key_of_thread(), chunk * 2 + i) = is_key ? values : make_uint4(0, 0, 0, 0);
    }
  }
}

// The row of a table of bf16 keys, straight into the tile.
template <int kDim>
static __device__ __forceinline__ void copy_row(void *tile, const void *row, bool is_key) {
#pragma unroll
  for (int step = 0; step < kDim / 32; ++step) {
    const int piece = step * 4 + group_of_thread();
    const unsigned to = static_cast<unsigned>(__cvta_generic_to_shared(piece_of_tile(tile, key_of_thread(), piece)));
    const uint4 *from = reinterpret_cast<const uint4 *>(row) + piece;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(is_key ? 16 : 0) : "memory");
  }
  asm volatile("cp.async.commit_group;");
}

static __device__ __forceinline__ void await_rows() { asm volatile("cp.async.wait_group 0;" ::: "memory"); }
}  // namespace thalweg
