// A few rows of bfloat16 times a bfloat16 weight in its natural order.
//
// Lane 4 g + t holds rows g and g + 8 at columns 8 t to 8 t + 7 of a group of 32, 16 bytes each, of the weight and of x.

#include "row_products.cuh"

namespace thalweg {

template <int BLOCKS>
struct Bf16Pointers {
  const __nv_bfloat16 *weight[4], *x[BLOCKS];
};

template <int COUNT, int BLOCKS>
struct Bf16Groups {
  uint4 weight[COUNT][4], x[COUNT][BLOCKS];

  __device__ __forceinline__ void load(const Bf16Pointers<BLOCKS>& from, int group) {
#pragma unroll
    for (int r = 0; r < 4; ++r)
#pragma unroll
      for (int u = 0; u < COUNT; ++u) weight[u][r] = load_once(from.weight[r] + (group + u) * 32);
#pragma unroll
    for (int b = 0; b < BLOCKS; ++b)
#pragma unroll
      for (int u = 0; u < COUNT; ++u)
        x[u][b] = __ldg(reinterpret_cast<const uint4*>(from.x[b] + (group + u) * 32));
  }

  __device__ __forceinline__ void add_to(float (&sums)[2][BLOCKS][4]) const {
#pragma unroll
    for (int u = 0; u < COUNT; ++u)
#pragma unroll
      for (int b = 0; b < BLOCKS; ++b)
#pragma unroll
        for (int m = 0; m < 2; ++m) {
          const uint4 upper = weight[u][2 * m], lower = weight[u][2 * m + 1], v = x[u][b];
          const uint32_t a[2][4] = {{upper.x, lower.x, upper.y, lower.y}, {upper.z, lower.z, upper.w, lower.w}};
          multiply<true>(sums[m][b], a[0], v.x, v.y);
          multiply<true>(sums[m][b], a[1], v.z, v.w);
        }
  }
};

// out [n, width] for 32 WARPS_DOWN rows of the weight [width, 32 depth] from `place` on and 8 BLOCKS rows of x from
// `column` on; rows of x are x_stride apart. COUNT divides depth.
template <int BLOCKS, int WARPS_DOWN, int WARPS_ACROSS, int SPLITS, int COUNT, class Out>
__device__ __forceinline__ void bf16_rows(const void* x, const void* weight, void* out, float* partials, int n,
                                          int x_stride, int depth, int width, int place, int rank, int column) {
  using S = Shape<BLOCKS, WARPS_DOWN, WARPS_ACROSS, SPLITS>;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
  const int w_first = place * 32 * WARPS_DOWN, x_first = column * 8 * BLOCKS;
  Bf16Pointers<BLOCKS> from;
#pragma unroll
  for (int r = 0; r < 4; ++r) {  // a row beyond the last one reads that one, and is not written
    const size_t row = min(w_first + warp % WARPS_DOWN * 32 + 8 * r + g, width - 1);
    from.weight[r] = static_cast<const __nv_bfloat16*>(weight) + row * depth * 32 + 8 * t;
  }
#pragma unroll
  for (int b = 0; b < BLOCKS; ++b)
    from.x[b] = static_cast<const __nv_bfloat16*>(x) + static_cast<size_t>(min(x_first + 8 * b + g, n - 1)) * x_stride +
                8 * t;
  const int parts = WARPS_ACROSS * SPLITS, part = rank * WARPS_ACROSS + warp / WARPS_DOWN, steps = depth / COUNT;
  const int end = steps * (part + 1) / parts;
  Sums<S> sums = {};
  for (int step = steps * part / parts; step < end; ++step) {
    Bf16Groups<COUNT, BLOCKS> values;
    values.load(from, step * COUNT);
    values.add_to(sums);
  }
  finish<S>(sums, partials, static_cast<Out*>(out), n, width, x_first, w_first, rank);
}

}  // namespace thalweg
