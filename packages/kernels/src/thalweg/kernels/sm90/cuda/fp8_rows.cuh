// A few rows of MXFP8 times a packed FP8 weight.
//
// A warp takes bytes of the weight from memory straight to the registers of the product: lane 4 g + t holds rows g and
// g + 8 at columns 8 t to 8 t + 7 of a group of 32. Which columns a product calls its own does not matter to a sum if x
// is held the same way. e4m3 is exact in float16, and so is a product of two in float32; the scales of a group of 32
// columns are applied to their sum.

#include "row_products.cuh"

namespace thalweg {

// Values of two e4m3 bytes as float16: the lower two, and the upper two of a word.
__device__ __forceinline__ uint32_t lower_pair(uint32_t bytes) {
  uint32_t pair;
  asm("{.reg .b16 low, high;\n mov.b32 {low, high}, %1;\n cvt.rn.f16x2.e4m3x2 %0, low;}" : "=r"(pair) : "r"(bytes));
  return pair;
}

__device__ __forceinline__ uint32_t upper_pair(uint32_t bytes) {
  uint32_t pair;
  asm("{.reg .b16 low, high;\n mov.b32 {low, high}, %1;\n cvt.rn.f16x2.e4m3x2 %0, high;}" : "=r"(pair) : "r"(bytes));
  return pair;
}

// 2^(byte - 127) of one byte of a word; infinite for 255, which no number has.
__device__ __forceinline__ float power(uint32_t word, int index) {
  return __uint_as_float(((word >> (8 * index)) & 0xff) << 23);
}

// COUNT neighbouring scales in one word, the first one lowest.
template <int COUNT>
__device__ __forceinline__ uint32_t load_scales(const uint8_t* scales) {
  if constexpr (COUNT == 4) return __ldg(reinterpret_cast<const uint32_t*>(scales));
  else if constexpr (COUNT == 2) return __ldg(reinterpret_cast<const uint16_t*>(scales));
  else return __ldg(scales);
}

template <int BLOCKS>
struct Fp8Pointers {
  const uint8_t *tiles, *tile_scales, *x[BLOCKS], *x_scales[BLOCKS][2];
};

template <int COUNT, int BLOCKS>
struct Fp8Groups {
  uint4 weight[COUNT][2];
  uint2 x[COUNT][BLOCKS];
  uint32_t x_scales[BLOCKS][2], weight_scales;

  // What this lane needs of COUNT groups of 32 columns, from `group` on.
  __device__ __forceinline__ void load(const Fp8Pointers<BLOCKS>& from, int group) {
#pragma unroll
    for (int u = 0; u < COUNT; ++u)
#pragma unroll
      for (int m = 0; m < 2; ++m)
        weight[u][m] = load_once(from.tiles + (group + u) * 1024 + m * 512 + threadIdx.x % 32 * 16);
    weight_scales = load_scales<COUNT>(from.tile_scales + group);
#pragma unroll
    for (int b = 0; b < BLOCKS; ++b) {
#pragma unroll
      for (int u = 0; u < COUNT; ++u)
        x[u][b] = __ldg(reinterpret_cast<const uint2*>(from.x[b] + (group + u) * 32));
#pragma unroll
      for (int e = 0; e < 2; ++e) x_scales[b][e] = load_scales<COUNT>(from.x_scales[b][e] + group);
    }
  }

  __device__ __forceinline__ void add_to(float (&sums)[2][BLOCKS][4]) const {
#pragma unroll
    for (int u = 0; u < COUNT; ++u) {
      uint32_t a[2][2][4];
#pragma unroll
      for (int m = 0; m < 2; ++m) {
        const uint4 w = weight[u][m];
        a[m][0][0] = lower_pair(w.x), a[m][0][1] = lower_pair(w.z);
        a[m][0][2] = upper_pair(w.x), a[m][0][3] = upper_pair(w.z);
        a[m][1][0] = lower_pair(w.y), a[m][1][1] = lower_pair(w.w);
        a[m][1][2] = upper_pair(w.y), a[m][1][3] = upper_pair(w.w);
      }
      const float weight_scale = power(weight_scales, u);
#pragma unroll
      for (int b = 0; b < BLOCKS; ++b) {
        const uint2 v = x[u][b];
        const uint32_t x0 = lower_pair(v.x), x1 = upper_pair(v.x), x2 = lower_pair(v.y), x3 = upper_pair(v.y);
        const float even = weight_scale * power(x_scales[b][0], u), odd = weight_scale * power(x_scales[b][1], u);
#pragma unroll
        for (int m = 0; m < 2; ++m) {
          float part[4] = {0, 0, 0, 0};
          multiply<false>(part, a[m][0], x0, x1);
          multiply<false>(part, a[m][1], x2, x3);
          sums[m][b][0] += part[0] * even, sums[m][b][1] += part[1] * odd;
          sums[m][b][2] += part[2] * even, sums[m][b][3] += part[3] * odd;
        }
      }
    }
  }
};

// out [n, O] for 32 WARPS_DOWN rows of the weight from `place` on and 8 BLOCKS rows of x from `column` on. The weight
// has tiles_down x width tiles, in `groups` parts with columns of x of their own. COUNT divides width.
template <int BLOCKS, int WARPS_DOWN, int WARPS_ACROSS, int SPLITS, int COUNT>
__device__ __forceinline__ void fp8_rows(const uint8_t* codes, const uint8_t* scales, const uint8_t* tiles,
                                         const uint8_t* tile_scales, void* out, float* partials, int n, int width,
                                         int tiles_down, int groups, int place, int rank, int column) {
  using S = Shape<BLOCKS, WARPS_DOWN, WARPS_ACROSS, SPLITS>;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
  const int tile_row = min(place * WARPS_DOWN + warp % WARPS_DOWN, tiles_down - 1);
  const int x_first = column * 8 * BLOCKS, x_group = tile_row / (tiles_down / groups) * width;
  Fp8Pointers<BLOCKS> from;
  from.tiles = tiles + static_cast<size_t>(tile_row) * width * 1024;
  from.tile_scales = tile_scales + static_cast<size_t>(tile_row) * width;
#pragma unroll
  for (int b = 0; b < BLOCKS; ++b) {  // a row beyond the last one reads that one, and is not written
    const int row = x_first + 8 * b;
    from.x[b] = codes + (static_cast<size_t>(min(row + g, n - 1)) * groups * width + x_group) * 32 + 8 * t;
#pragma unroll
    for (int e = 0; e < 2; ++e)
      from.x_scales[b][e] = scales + static_cast<size_t>(min(row + 2 * t + e, n - 1)) * groups * width + x_group;
  }
  const int parts = WARPS_ACROSS * SPLITS, part = rank * WARPS_ACROSS + warp / WARPS_DOWN, steps = width / COUNT;
  const int end = steps * (part + 1) / parts;
  Sums<S> sums = {};
  for (int step = steps * part / parts; step < end; ++step) {
    Fp8Groups<COUNT, BLOCKS> bytes;
    bytes.load(from, step * COUNT);
    bytes.add_to(sums);
  }
  finish<S>(sums, partials, static_cast<__nv_bfloat16*>(out), n, tiles_down * 32, x_first, place * 32 * WARPS_DOWN, rank);
}

}  // namespace thalweg
