// Instructions that CUDA C++ has no names for: barriers, copies, operands of matrix instructions.

#include <tl_templates/cuda/instruction/wgmma.h>

#include "shared_address.cuh"

namespace thalweg {
constexpr int kTile = 64, kHeads = 64, kGroup = 128;
constexpr auto kBf16 = tl::DataType::kBFloat16, kFloat = tl::DataType::kFloat32;

static __device__ __forceinline__ int octet() { return threadIdx.x % 32 / 8; }
static __device__ __forceinline__ int unit_key(int unit) {
  return unit * 32 + threadIdx.x % kGroup / 32 * 8 + threadIdx.x % 8;
}

// Byte address of 8 columns of a row: panels of 64 columns, whose 16-byte pieces are swizzled by the row.
static __device__ __forceinline__ unsigned piece_address(unsigned tile, int row, int piece) {
  return tile + piece / 8 * (kTile * 128) + row * 128 + ((piece ^ row) & 7) * 16;
}

static __device__ __forceinline__ void store_piece(unsigned tile, int row, int piece, uint4 values) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(piece_address(tile, row, piece)), "r"(values.x),
               "r"(values.y), "r"(values.z), "r"(values.w)
               : "memory");
}

static __device__ __forceinline__ void copy_piece(unsigned tile, int row, int piece, const void *from, bool is_there) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(piece_address(tile, row, piece)), "l"(from),
               "r"(is_there ? 16 : 0)
               : "memory");
}

static __device__ __forceinline__ void await_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

// What was written to shared memory, to matrix instructions of whoever learns of it.
static __device__ __forceinline__ void publish() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

static __device__ __forceinline__ void group_barrier(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

static __device__ __forceinline__ void init_barrier(unsigned barrier, int warps) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(warps) : "memory");
}

// One arrival for the warp, after all that its lanes did.
static __device__ __forceinline__ void arrive(unsigned barrier) {
  __syncwarp();
  if (threadIdx.x % 32 == 0) asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

static __device__ __forceinline__ void await(unsigned barrier, int parity) {
  asm volatile(
      "{ .reg .pred p;\nrepeat:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n@p bra done;\nbra repeat;\ndone: }"
      ::"r"(barrier), "r"(parity)
      : "memory");
}

template <int kRegisters>
static __device__ __forceinline__ void more_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

template <int kRegisters>
static __device__ __forceinline__ void fewer_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// Of a 128-byte swizzled operand; offsets in bytes of the next panel (operands whose columns are summed over do not
// look at it) and of the next 8 rows.
static __device__ __forceinline__ uint64_t descriptor(unsigned address, int next_panel) {
  return static_cast<uint64_t>(address >> 4 & 0x3FFF) | static_cast<uint64_t>(next_panel >> 4) << 16 |
         static_cast<uint64_t>(1024 >> 4) << 32 | 1ull << 62;
}

// The same, a number of bytes on.
static __device__ __forceinline__ uint64_t advance(uint64_t from, int bytes) {
  return (from & 0xFFFFFFFF00000000ull) | (static_cast<unsigned>(from) + (bytes >> 4));
}

static __device__ __forceinline__ void fence_registers(float *values, int count) {
#pragma unroll
  for (int i = 0; i < count; ++i) asm volatile("" : "+f"(values[i])::"memory");
}

static __device__ __forceinline__ void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
static __device__ __forceinline__ void end_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

template <int kLeft>
static __device__ __forceinline__ void await_products() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kLeft) : "memory");
}

static __device__ __forceinline__ float power_of_2(float exponent) {
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(exponent));
  return power;
}

static __device__ __forceinline__ unsigned pair_of(float low, float high) {
  unsigned pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}
}  // namespace thalweg
