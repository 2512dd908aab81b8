// Scores of MXFP4 queries with MXFP4 keys: score(row, key) = sum_h weight[row, h] relu(q[row, h] . k[key]).
//
// One warpgroup takes 64 keys at a time, half a tile. FP4 magnitudes are e4m3 as they are: their three bits, moved to
// where e4m3 has its lowest exponent bits and its highest mantissa bit, are the value times 2^-6 (0.5, a subnormal,
// included). So four bytes come out of two shifts and two bit selections, without a table and without products.
// One wgmma takes 32 columns, which is one scale group. Products of FP4 values are multiples of 1/4 up to 36, so 32 of
// them add up without rounding in the 14 bits that FP8 accumulators have. Groups therefore keep accumulators of their
// own; their scales are applied in float32. The scale of a query's group goes into its bytes, as far as e4m3 reaches:
// 14 binades within a head, else (`is_wide`) it is applied in float32 as well.
//
// The order of columns inside a group is whatever is cheapest for the keys: a lane takes 8 neighbouring ones, first
// those in low nibbles, then those in high ones. Queries are laid out in the same order once per row.
// A tile of keys lies in shared memory in four pieces, each 16 bytes further than it would: a pair of keys out of each
// of the four then fills all banks, which is what a matrix of ldmatrix is made of.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp8.h>
#include <cstdint>

namespace thalweg {

constexpr int TILE = 128;
constexpr int PIECE = TILE / 4;
constexpr int PIECE_PAD = 16;
constexpr int HALF = PIECE / 2;  // keys of a piece that one half of the tile has
constexpr int THREADS = 128;

__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// The same, known to the compiler as a number that it need not work out again.
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

__device__ __forceinline__ void barrier_init(uint32_t barrier, int count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count));
}

__device__ __forceinline__ void barrier_arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

__device__ __forceinline__ void barrier_arrive_and_expect(uint32_t barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

__device__ __forceinline__ void barrier_wait(uint32_t barrier, int parity) {
  asm volatile(
      "{\n.reg .pred done;\n"
      "again: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@done bra.uni over;\nbra.uni again;\nover:\n}" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

// Sizes and addresses must be multiples of 16 bytes.
__device__ __forceinline__ void bulk_load(uint32_t target, const void* source, int bytes, uint32_t barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(target),
               "l"(source), "r"(bytes), "r"(barrier)
               : "memory");
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
__device__ __forceinline__ void multiply_wait() { asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory"); }

// 64 keys in registers times N heads in shared memory, one group deep; what was in `sums` is not read.
template <int HEADS, int N>
__device__ __forceinline__ void multiply_group(float (&sums)[N / 2], const uint32_t (&a)[4], uint32_t heads) {
  constexpr uint32_t between_halves = HEADS, between_octets = 8;  // in units of 16 bytes
  multiply<N>(sums, a, (heads >> 4) | between_halves << 16, between_octets);
}

#else  // without the products of warpgroups that only Hopper has: warp by warp, in the same layout

__device__ __forceinline__ void multiply_begin() {}
__device__ __forceinline__ void multiply_commit() {}
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

// Everything that one row contributes, in shared memory.
template <int HEADS, int DIM>
struct alignas(16) QueryRow {
  uint8_t bytes[HEADS * DIM];
  float weights[HEADS];
  float scales[DIM / 32][HEADS];  // of groups, where bytes do not hold them
  int is_wide;
};

// e4m3 byte of an FP4 code times a power of two, exact in range.
__device__ __forceinline__ uint32_t scaled_byte(uint32_t code, float scale) {
  const uint32_t magnitude = code & 7u;
  const float value = magnitude < 2 ? 0.5f * magnitude  // the rest has an exponent and one bit of a mantissa
                                    : (1.0f + 0.5f * (magnitude & 1u)) * (1 << ((magnitude >> 1) - 1));
  const uint32_t byte = __nv_cvt_float_to_fp8(value * scale, __NV_SATFINITE, __NV_E4M3);
  return byte | (code & 8u) << 4;
}

// Lay a row out; all threads of the block take part, and none may still read the row that was there.
template <int HEADS, int DIM>
__device__ __forceinline__ void load_query(QueryRow<HEADS, DIM>& row, const uint8_t* codes, const uint8_t* scales,
                                           const __nv_bfloat16* head_weights) {
  constexpr int GROUPS = DIM / 32, REACH = 14, TOP = 6, ONE = 127;
  bool is_wide = false;
  for (int place = threadIdx.x; place < HEADS * GROUPS; place += THREADS) {
    const int head = place / GROUPS, g = place % GROUPS;
    int most = 0;
    for (int other = 0; other < GROUPS; ++other) most = max(most, int(scales[head * GROUPS + other]));
    const int below = most - int(scales[place]);
    const uint4 packed = *reinterpret_cast<const uint4*>(codes + place * 16);
    is_wide |= below > REACH && ((packed.x | packed.y | packed.z | packed.w) & 0x77777777u) != 0;
    row.scales[g][head] = power_of_two(max(ONE - below, 0));
    if (g == 0) row.weights[head] = __bfloat162float(head_weights[head]) * power_of_two(most);
  }
  is_wide = __syncthreads_or(is_wide);
  if (threadIdx.x == 0) row.is_wide = is_wide;
  for (int place = threadIdx.x; place < HEADS * GROUPS * 4; place += THREADS) {
    const int word = place % 4, head = place / 4 / GROUPS, g = place / 4 % GROUPS;
    const int below = ONE - (__float_as_uint(row.scales[g][head]) >> 23);
    const float scale = power_of_two(ONE + TOP - (is_wide ? 0 : min(below, REACH)));
    const uint32_t nibbles = *reinterpret_cast<const uint32_t*>(codes + place * 4);
    uint32_t low = 0, high = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      low |= scaled_byte(nibbles >> (8 * i) & 15u, scale) << (8 * i);
      high |= scaled_byte(nibbles >> (8 * i + 4) & 15u, scale) << (8 * i);
    }
    *reinterpret_cast<uint32_t*>(row.bytes + ((g * 2 + 0) * HEADS + head) * 16 + 4 * word) = low;
    *reinterpret_cast<uint32_t*>(row.bytes + ((g * 2 + 1) * HEADS + head) * 16 + 4 * word) = high;
  }
}

}  // namespace thalweg
