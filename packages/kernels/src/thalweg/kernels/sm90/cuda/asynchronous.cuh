// What products share that the asynchronous proxy feeds: barriers and copies, descriptors of matrices in shared memory,
// and the tensor cores' own order of work.

#include <cuda_bf16.h>
#include <tl_templates/cuda/common.h>
#include <tl_templates/cuda/instruction/wgmma.h>

#include <cstdint>

#include "shared_address.cuh"

namespace thalweg {

// A number that all lanes of a warp have, so that the compiler knows: products in a path that it thinks only some lanes
// take wait for each other.
__device__ __forceinline__ int uniform(int value) { return __shfl_sync(0xffffffffu, value, 0); }

__device__ __forceinline__ void barrier_init(uint32_t barrier, int arrivals) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals));
}

__device__ __forceinline__ void barrier_arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(barrier) : "memory");
}

__device__ __forceinline__ void barrier_expect(uint32_t barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

__device__ __forceinline__ void barrier_wait(uint32_t barrier, uint32_t parity) {
  asm volatile(
      "{\n.reg .pred done;\nwaiting:\n"
      "mbarrier.try_wait.parity.shared.b64 done, [%0], %1;\n"
      "@done bra finished;\nbra waiting;\nfinished:\n}" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

// Four warps that fetch leave registers to GROUPS times four warps that multiply. A multiprocessor has 512 for each of
// 128 threads; a block starts with equal shares, in multiples of eight.
constexpr int kFetchRegisters = 24;
__device__ __forceinline__ void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kFetchRegisters));
}
template <int GROUPS>
__device__ __forceinline__ void take_registers() {
  constexpr int kShare = 512 / (GROUPS + 1) / 8 * 8;
  constexpr int kOwn = ((GROUPS + 1) * kShare - kFetchRegisters) / GROUPS / 8 * 8;
  if constexpr (kOwn > kShare) asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kOwn));
}

// Threads of a named barrier wait for each other; 0 is that of the whole block.
__device__ __forceinline__ void wait_for_others(int barrier, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

// Ordinary writes to shared memory come before what the asynchronous proxy does later.
__device__ __forceinline__ void publish_shared() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Fetch bytes (a multiple of 16) that are read once in the lifetime of the cache, and count them on a barrier.
__device__ __forceinline__ void fetch_once(uint32_t to, const void* from, int bytes, uint32_t barrier) {
  asm volatile(
      "{\n.reg .b64 policy;\ncreatepolicy.fractional.L2::evict_first.b64 policy, 1.0;\n"
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], policy;\n"
      "}" ::"r"(to),
      "l"(from), "r"(bytes), "r"(barrier)
      : "memory");
}

// The same of bytes that other blocks read as well.
__device__ __forceinline__ void fetch_again(uint32_t to, const void* from, int bytes, uint32_t barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
               "l"(from), "r"(bytes), "r"(barrier)
               : "memory");
}

__device__ __forceinline__ uint4 load_shared_16(uint32_t from) {
  uint4 value;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "r"(from));
  return value;
}

__device__ __forceinline__ uint32_t load_shared_4(uint32_t from) {
  uint32_t value;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(value) : "r"(from));
  return value;
}

// A matrix of rows of 128 bytes, K along them, chunks of 16 bytes swizzled by the row; 8 rows are 1,024 bytes.
__device__ __forceinline__ uint64_t row_matrix(uint32_t address) {
  return (uint64_t(1) << 62) | (uint64_t(1024 >> 4) << 32) | (uint64_t(1) << 16) | ((address & 0x3ffff) >> 4);
}

__device__ __forceinline__ void products_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void products_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int PENDING>
__device__ __forceinline__ void products_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

// Operands of products, complete before products begin: the compiler puts a fence of its own before each product whose
// registers it writes after that.
template <int COUNT>
__device__ __forceinline__ void ready(uint32_t (&operands)[COUNT]) {
#pragma unroll
  for (int i = 0; i < COUNT; ++i) asm volatile("" : "+r"(operands[i])::"memory");
}

// Results of products that were waited for: keeps the compiler from reading them before.
template <int COUNT>
__device__ __forceinline__ void settle(float (&results)[COUNT]) {
#pragma unroll
  for (int i = 0; i < COUNT; ++i) asm volatile("" : "+f"(results[i])::"memory");
}

// out = weights [64 x 32 of e4m3] * rows [WIDTH x 32]; not added to what out held.
template <int WIDTH>
__device__ __forceinline__ void product_e4m3(float (&out)[WIDTH / 2], const uint32_t (&a)[4], uint64_t rows) {
  using tl::DataType;
  tl::wgmma_rs<DataType::kFloat8_e4m3, DataType::kFloat8_e4m3, DataType::kFloat32, 64, WIDTH, 32, false, false>(
      a, rows, reinterpret_cast<uint32_t*>(out), false);
}

}  // namespace thalweg
