// What products of a few rows of activations by a weight have in common: the tensor core's product, with rows of the
// weight as its M and rows of x as its N, and the sum over the warps and blocks that share out the columns.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace thalweg {

__device__ __forceinline__ uint4 load_once(const void* address) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(address));
  return v;
}

// sum += a b: 16 rows of the weight, 8 rows of x, 16 columns, in float16 or bfloat16.
template <bool BF16>
__device__ __forceinline__ void multiply(float (&sum)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  if constexpr (BF16)
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  else
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ __forceinline__ void cluster_barrier() {
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

__device__ __forceinline__ float load_from(const float* address, int rank) {
  float value;
  asm volatile("{.reg .b32 there;\n mapa.shared::cluster.u32 there, %1, %2;\n ld.shared::cluster.f32 %0, [there];}"
               : "=f"(value)
               : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(address))), "r"(rank)
               : "memory");
  return value;
}

// How the work is shared out. A warp has 32 rows of the weight and 8 BLOCKS rows of x; WARPS_DOWN warps have rows of
// the weight next to each other, WARPS_ACROSS warps in SPLITS blocks of a cluster share out the columns.
template <int BLOCKS_, int WARPS_DOWN_, int WARPS_ACROSS_, int SPLITS_>
struct Shape {
  static constexpr int BLOCKS = BLOCKS_, WARPS_DOWN = WARPS_DOWN_, WARPS_ACROSS = WARPS_ACROSS_, SPLITS = SPLITS_;
  static constexpr int THREADS = 32 * WARPS_DOWN * WARPS_ACROSS;
  static constexpr int STRIDE = 36;  // floats of a column of 32 partial sums: 32 lanes write to different banks
  static constexpr int WARP_FLOATS = 8 * BLOCKS * STRIDE;
};

template <class S>
using Sums = float[2][S::BLOCKS][4];

__device__ __forceinline__ void write(float value, float* to) { *to = value; }
__device__ __forceinline__ void write(float value, __nv_bfloat16* to) { *to = __float2bfloat16_rn(value); }

// Adds up the sums of warps and blocks, those of the first columns first, and writes out [n, width] from row x_first and
// column w_first on. `partials` is WARPS_DOWN * WARPS_ACROSS * WARP_FLOATS floats of shared memory.
template <class S, class Out>
__device__ __forceinline__ void finish(const Sums<S>& sums, float* partials, Out* out, int n, int width, int x_first,
                                       int w_first, int rank) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
  float* mine = partials + warp * S::WARP_FLOATS;
#pragma unroll
  for (int m = 0; m < 2; ++m)
#pragma unroll
    for (int b = 0; b < S::BLOCKS; ++b)
#pragma unroll
      for (int i = 0; i < 4; ++i)
        mine[(8 * b + 2 * t + i % 2) * S::STRIDE + 16 * m + 8 * (i / 2) + g] = sums[m][b][i];
  if constexpr (S::SPLITS > 1) cluster_barrier(); else __syncthreads();

  constexpr int ROWS = 32 * S::WARPS_DOWN;
  for (int i = rank * S::THREADS + threadIdx.x; i < ROWS * 8 * S::BLOCKS; i += S::SPLITS * S::THREADS) {
    const int w_row = i % ROWS, x_row = i / ROWS;
    const float* source = partials + w_row / 32 * S::WARP_FLOATS + x_row * S::STRIDE + w_row % 32;
    float sum = 0;
#pragma unroll
    for (int s = 0; s < S::SPLITS; ++s)
#pragma unroll
      for (int k = 0; k < S::WARPS_ACROSS; ++k) {
        const float* from = source + k * S::WARPS_DOWN * S::WARP_FLOATS;
        if constexpr (S::SPLITS > 1) sum += load_from(from, s); else sum += *from;
      }
    if (x_first + x_row < n && w_first + w_row < width)
      write(sum, out + static_cast<size_t>(x_first + x_row) * width + w_first + w_row);
  }
  if constexpr (S::SPLITS > 1) cluster_barrier();  // nobody leaves while others still read
}

}  // namespace thalweg
