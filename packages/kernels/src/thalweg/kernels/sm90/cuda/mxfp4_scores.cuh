// Scores of MXFP4 queries with MXFP4 keys: score(row, key) = sum_h weight[row, h] relu(q[row, h] . k[key]).
//
// One warpgroup takes 64 keys at a time, half a tile. FP4 magnitudes are e4m3 as they are: their three bits, moved to
// where e4m3 has its lowest exponent bits and its highest mantissa bit, are the value times 2^-6 (0.5, a subnormal,
// included). So four bytes come out of two shifts and two bit selections, without a table and without products.
// One wgmma takes 32 columns, which is one scale group. Products of FP4 values are multiples of 1/4 up to 36, so 32 of
// them add up without rounding in the 14 bits that FP8 accumulators have. Groups therefore keep accumulators of their
// own; their scales are applied in float32. The scale of a query's group goes into its bytes, as far as e4m3 reaches
// without subnormals: 11 binades within a head, else (`is_wide`) it is applied in float32 as well.
//
// The order of columns inside a group is whatever is cheapest for the keys: a lane takes 8 neighbouring ones, first
// those in low nibbles, then those in high ones. Queries are laid out in the same order once per row.
#pragma once
#include <cuda_bf16.h>
#include <cstdint>

#include "shared_address.cuh"

namespace thalweg {

constexpr int TILE = 128;
constexpr int THREADS = 128;

// The address in shared memory, known to the compiler as a number that it need not work out again.
__device__ __forceinline__ uint32_t fixed_address(const void* pointer) {
  uint32_t address;
  asm volatile("mov.u32 %0, %1;" : "=r"(address) : "r"(shared_address(pointer)));
  return address;
}

__device__ __forceinline__ uint32_t load_word(uint32_t address) {
  uint32_t word;
  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(word) : "r"(address) : "memory");
  return word;
}

__device__ __forceinline__ uint32_t load_half_word(uint32_t address) {
  uint16_t word;
  asm volatile("ld.shared.b16 %0, [%1];" : "=h"(word) : "r"(address) : "memory");
  return word;
}

__device__ __forceinline__ void load_matrices(uint32_t (&words)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(address)
               : "memory");
}

// e4m3 bytes of the values in low nibbles times 2^-6.
__device__ __forceinline__ uint32_t low_nibbles(uint32_t packed) {
  return ((packed * 16u) & 0x80808080u) | ((packed * 4u) & 0x1C1C1C1Cu);
}

// e4m3 bytes of the values in high nibbles times 2^-6.
__device__ __forceinline__ uint32_t high_nibbles(uint32_t packed) {
  return (packed & 0x80808080u) | ((packed >> 2) & 0x1C1C1C1Cu);
}

__device__ __forceinline__ float power_of_two(uint32_t exponent_byte) { return __uint_as_float(exponent_byte << 23); }

// The query operand of one row: 8 heads x 16 bytes are one matrix of the tensor cores.
// Bytes of group g, half b (low or high nibbles), head h: ((g * 2 + b) * HEADS + h) * 16 + place.
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

template <int N>
__device__ __forceinline__ void multiply(float (&sums)[N / 2], const uint32_t (&a)[4], uint32_t low, uint32_t high);

template <>
__device__ __forceinline__ void multiply<8>(float (&d)[4], const uint32_t (&a)[4], uint32_t low, uint32_t high) {
  asm volatile(
      "{\n.reg .pred none;\n.reg .b64 b;\nsetp.ne.b32 none, 0, 0;\nmov.b64 b, {%8, %9};\n"
      "wgmma.mma_async.sync.aligned.m64n8k32.f32.e4m3.e4m3 {%0, %1, %2, %3}, {%4, %5, %6, %7}, b, none, 1, 1;\n}"
      : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(low), "r"(high));
}

template <>
__device__ __forceinline__ void multiply<16>(float (&d)[8], const uint32_t (&a)[4], uint32_t low, uint32_t high) {
  asm volatile(
      "{\n.reg .pred none;\n.reg .b64 b;\nsetp.ne.b32 none, 0, 0;\nmov.b64 b, {%12, %13};\n"
      "wgmma.mma_async.sync.aligned.m64n16k32.f32.e4m3.e4m3 {%0, %1, %2, %3, %4, %5, %6, %7}, "
      "{%8, %9, %10, %11}, b, none, 1, 1;\n}"
      : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3]), "=f"(d[4]), "=f"(d[5]), "=f"(d[6]), "=f"(d[7])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(low), "r"(high));
}

template <>
__device__ __forceinline__ void multiply<32>(float (&d)[16], const uint32_t (&a)[4], uint32_t low, uint32_t high) {
  asm volatile(
      "{\n.reg .pred none;\n.reg .b64 b;\nsetp.ne.b32 none, 0, 0;\nmov.b64 b, {%20, %21};\n"
      "wgmma.mma_async.sync.aligned.m64n32k32.f32.e4m3.e4m3 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, "
      "%13, %14, %15}, {%16, %17, %18, %19}, b, none, 1, 1;\n}"
      : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3]), "=f"(d[4]), "=f"(d[5]), "=f"(d[6]), "=f"(d[7]), "=f"(d[8]),
        "=f"(d[9]), "=f"(d[10]), "=f"(d[11]), "=f"(d[12]), "=f"(d[13]), "=f"(d[14]), "=f"(d[15])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(low), "r"(high));
}

__device__ __forceinline__ void multiply_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void multiply_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

template <int LEFT>
__device__ __forceinline__ void multiply_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory");
}

// 64 keys in registers times N heads in shared memory, one group deep; what was in `sums` is not read.
template <int HEADS, int N>
__device__ __forceinline__ void multiply_group(float (&sums)[N / 2], const uint32_t (&a)[4], uint32_t heads) {
  constexpr uint32_t between_halves = HEADS, between_octets = 8;  // in units of 16 bytes
  multiply<N>(sums, a, (heads >> 4) | between_halves << 16, between_octets);
}

#else  // without the products of warpgroups that only Hopper has: warp by warp, in the same layout

__device__ __forceinline__ void multiply_begin() {}
__device__ __forceinline__ void multiply_commit() {}

template <int LEFT>
__device__ __forceinline__ void multiply_wait() {}

template <int HEADS, int N>
__device__ __forceinline__ void multiply_group(float (&sums)[N / 2], const uint32_t (&a)[4], uint32_t heads) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int octet = 0; octet < N / 8; ++octet) {
    const uint32_t bytes = heads + (octet * 8 + lane / 4) * 16 + lane % 4 * 4;
    const uint32_t low = load_word(bytes), high = load_word(bytes + HEADS * 16);
    float* d = &sums[octet * 4];
    asm volatile(
        "mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%10, %10, %10, %10};"
        : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(low), "r"(high), "f"(0.0f));
  }
}

#endif

template <int COUNT>
__device__ __forceinline__ void keep_order(float (&values)[COUNT]) {
#pragma unroll
  for (int i = 0; i < COUNT; ++i) asm volatile("" : "+f"(values[i])::"memory");
}

template <int COUNT>
__device__ __forceinline__ void keep_order(uint32_t (&words)[COUNT]) {
#pragma unroll
  for (int i = 0; i < COUNT; ++i) asm volatile("" : "+r"(words[i])::"memory");
}

// Twice what a value is above zero: additions have a faster unit than maxima.
__device__ __forceinline__ float twice_positive(float value) { return value + fabsf(value); }

// Everything that one row contributes, in shared memory.
template <int HEADS, int DIM>
struct alignas(16) QueryRow {
  uint8_t bytes[HEADS * DIM];
  float weights[HEADS];  // halves of them, for `twice_positive`
  float scales[DIM / 32][HEADS];  // of groups, as far as bytes do not hold them
};

// FP4 magnitudes times 2^exponent as e4m3 bytes, the four smaller ones in .x. Exact from 2^-5 to 2^6.
__device__ __forceinline__ uint2 scaled_magnitudes(int exponent) {
  return {0x3C383000u + exponent * 0x08080800u, 0x4C484440u + exponent * 0x08080808u};
}

// Lay a row out, and tell whether it is wide. All threads of the block take part, and none may still read the row that
// was there.
template <int HEADS, int DIM>
__device__ __forceinline__ bool load_query(QueryRow<HEADS, DIM>& row, const uint8_t* codes, const uint8_t* scales,
                                           const __nv_bfloat16* head_weights) {
  constexpr int GROUPS = DIM / 32, REACH = 11, TOP = 6, ONE = 127;
  bool is_wide = false;
  for (int place = threadIdx.x; place < HEADS * GROUPS; place += THREADS) {
    const int head = place / GROUPS, g = place % GROUPS;
    int most = 0;
#pragma unroll
    for (int other = 0; other < GROUPS; ++other) most = max(most, int(scales[head * GROUPS + other]));
    const int below = most - int(scales[place]);
    const uint4 packed = *reinterpret_cast<const uint4*>(codes + place * 16);
    is_wide |= below > REACH && ((packed.x | packed.y | packed.z | packed.w) & 0x77777777u) != 0;
    row.scales[g][head] = power_of_two(max(ONE - below, 0));
    if (g == 0) row.weights[head] = 0.5f * __bfloat162float(head_weights[head]) * power_of_two(most);
  }
  is_wide = __syncthreads_or(is_wide);
  for (int place = threadIdx.x; place < HEADS * GROUPS; place += THREADS) {
    const int head = place / GROUPS, g = place % GROUPS, below = ONE - int(__float_as_uint(row.scales[g][head]) >> 23);
    if (!is_wide) row.scales[g][head] = 1.0f;
    const uint2 magnitudes = scaled_magnitudes(TOP - (is_wide ? 0 : min(below, REACH)));
    const uint4 packed = *reinterpret_cast<const uint4*>(codes + place * 16);
    const uint32_t words[4] = {packed.x, packed.y, packed.z, packed.w};
    uint32_t low[4], high[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t places = words[i] & 0x77777777u;
      const uint32_t first = __byte_perm(magnitudes.x, magnitudes.y, places);
      const uint32_t second = __byte_perm(magnitudes.x, magnitudes.y, places >> 16);
      low[i] = __byte_perm(first, second, 0x6420) | (words[i] << 4 & 0x80808080u);
      high[i] = __byte_perm(first, second, 0x7531) | (words[i] & 0x80808080u);
    }
    uint8_t* bytes = row.bytes + (g * 2 * HEADS + head) * 16;
    *reinterpret_cast<uint4*>(bytes) = {low[0], low[1], low[2], low[3]};
    *reinterpret_cast<uint4*>(bytes + HEADS * 16) = {high[0], high[1], high[2], high[3]};
  }
  return is_wide;
}

}  // namespace thalweg
