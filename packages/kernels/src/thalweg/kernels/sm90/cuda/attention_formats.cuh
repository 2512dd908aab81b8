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
}  // namespace thalweg
