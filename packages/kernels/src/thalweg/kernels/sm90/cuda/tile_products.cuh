// What products of many rows by a weight have that TileLang does not express: bytes of a packed FP8 weight that become
// the register operand of the tensor cores, and results that are written with rows and columns exchanged.
//
// The threads of a product are 128 for every 64 rows of the weight, `thread` counts them.

#include "row_products.cuh"

namespace thalweg {

// Values of four e4m3 bytes, times 2^-120, as bfloat16: the lower two, and the upper two. The exponent of bfloat16 is
// wide enough to take that of e4m3 as it is, subnormal numbers included.
__device__ __forceinline__ uint32_t small_pair(uint32_t upper_bytes) {
  return (upper_bytes & 0x80008000u) | ((upper_bytes >> 4) & 0x07f007f0u);
}
__device__ __forceinline__ uint32_t small_lower(uint32_t word) { return small_pair(__byte_perm(word, 0, 0x1404)); }
__device__ __forceinline__ uint32_t small_upper(uint32_t word) { return small_pair(__byte_perm(word, 0, 0x3424)); }

__device__ __forceinline__ uint32_t product(uint32_t pair, __nv_bfloat162 factor) {
  const __nv_bfloat162 v = __hmul2(*reinterpret_cast<__nv_bfloat162*>(&pair), factor);
  return *reinterpret_cast<const uint32_t*>(&v);
}

// Operands are this much too small, so that those of no scale in use leave the range of bfloat16; results are multiplied
// by RESULT_FACTOR.
constexpr int WEIGHT_EXPONENT = 20, ROW_EXPONENT = 40;
constexpr float RESULT_FACTOR = 1ull << (WEIGHT_EXPONENT + ROW_EXPONENT);

// 2^(scale - 127) times 2^120 and 2^-exponent, twice; NaN for 255.
__device__ __forceinline__ __nv_bfloat162 operand_factor(uint32_t scale, int exponent) {
  const uint32_t bits = scale == 255 ? 0x7fc0 : (scale + 120 - exponent) << 7, both = bits | bits << 16;
  return *reinterpret_cast<const __nv_bfloat162*>(&both);
}

// The register operand of 16 rows and a group of 32 columns.
__device__ __forceinline__ void convert_operand(uint32_t* a, const uint4& v, __nv_bfloat162 factor) {
  a[0] = product(small_lower(v.x), factor), a[1] = product(small_lower(v.z), factor);
  a[2] = product(small_upper(v.x), factor), a[3] = product(small_upper(v.z), factor);
  a[4] = product(small_lower(v.y), factor), a[5] = product(small_lower(v.w), factor);
  a[6] = product(small_upper(v.y), factor), a[7] = product(small_upper(v.w), factor);
}

// The register operand of this thread for TILES groups of 32 columns, from packed tiles in shared memory. `scales` are
// those of the tile rows of a block, `stride` apart.
template <int TILES>
__device__ __forceinline__ void weight_operand(void* to, const uint8_t* tiles, const uint8_t* scales, int stride,
                                               int group, int last_group, int thread) {
  const int lane = thread % 32, warp = thread / 32;
  uint32_t* a = static_cast<uint32_t*>(to);
#pragma unroll
  for (int u = 0; u < TILES; ++u) {
    const uint4 v = *reinterpret_cast<const uint4*>(tiles + (warp / 2 * TILES + u) * 1024 + warp % 2 * 512 + lane * 16);
    const uint32_t scale = scales[warp / 2 * stride + min(group + u, last_group)];
    convert_operand(a + 8 * u, v, operand_factor(scale, WEIGHT_EXPONENT));
  }
}

// 8 MXFP8 values of a row, columns 8 t to 8 t + 7 of a group of 32, to the places where weight_operand expects them.
__device__ __forceinline__ void unpack_columns(const void* codes, uint32_t scale, void* group_start, int t) {
  const uint2 bytes = __ldg(static_cast<const uint2*>(codes));
  // Below 2^-87 a scale makes zeros of what is too small to matter; 255 is NaN.
  const float factor = scale == 255 ? NAN : __uint_as_float(max(static_cast<int>(scale) - ROW_EXPONENT, 0) << 23);
  const uint32_t words[2] = {bytes.x, bytes.y};
  uint32_t* out = static_cast<uint32_t*>(group_start);
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    uint32_t halves;
    asm("{.reg .b16 low, high;\n mov.b32 {low, high}, %1;\n cvt.rn.f16x2.e4m3x2 %0, low;}"
        : "=r"(halves)
        : "r"(words[j / 2] >> (j % 2 * 16)));
    const float2 values = __half22float2(*reinterpret_cast<__half2*>(&halves));
    const __nv_bfloat162 pair = __floats2bfloat162_rn(values.x * factor, values.y * factor);
    out[j / 2 * 8 + j % 2 * 4 + t] = *reinterpret_cast<const uint32_t*>(&pair);
  }
}

// sums += parts, or sums = parts, of COLUMNS rows of x. Tensor cores cut off what they add to a sum: short chains of
// theirs, added up here, keep it as exact as float32 is.
template <int COLUMNS>
__device__ __forceinline__ void add_parts(void* sums, const void* parts, bool is_first) {
  float* to = static_cast<float*>(sums);
  const float* from = static_cast<const float*>(parts);
#pragma unroll
  for (int i = 0; i < COLUMNS / 2; ++i) to[i] = is_first ? from[i] : to[i] + from[i];
}

// out [n, width] from row x_first and column w_first on, columns before w_end: the transpose of the accumulators of rows
// of the weight and COLUMNS rows of x, times a factor. `staging`: 32 bytes of shared memory per warp and row of x.
template <int COLUMNS>
__device__ __forceinline__ void write_transposed(const void* accumulators, void* staging, void* out, int n, int width,
                                                 int x_first, int w_first, int w_end, float factor, int thread) {
  const float* c = static_cast<const float*>(accumulators);
  const int lane = thread % 32, warp = thread / 32;
  char* mine = static_cast<char*>(staging) + warp * COLUMNS * 32;
  // Halves of a row change places every four rows, so that eight rows lie in different banks.
  const auto place = [&](int row, int half) { return mine + row * 32 + (half ^ (row >> 2 & 1)) * 16; };
#pragma unroll
  for (int b = 0; b < COLUMNS / 8; b += 2) {
    uint32_t pairs[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const __nv_bfloat162 pair = __floats2bfloat162_rn(c[4 * b + 2 * j] * factor, c[4 * b + 2 * j + 1] * factor);
      pairs[j] = *reinterpret_cast<const uint32_t*>(&pair);
    }
    const char* row = place(8 * (b + lane / 16) + lane % 8, lane / 8 % 2);
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(
                     static_cast<uint32_t>(__cvta_generic_to_shared(row))),
                 "r"(pairs[0]), "r"(pairs[1]), "r"(pairs[2]), "r"(pairs[3])
                 : "memory");
  }
  __syncwarp();
  const int w_row = w_first + 16 * warp + 8 * (lane % 2);
  if (w_row >= w_end) return;
#pragma unroll
  for (int i = 0; i < COLUMNS / 16; ++i) {
    const int row = 16 * i + lane / 2;
    if (x_first + row < n)
      *reinterpret_cast<uint4*>(static_cast<__nv_bfloat16*>(out) + static_cast<size_t>(x_first + row) * width + w_row) =
          *reinterpret_cast<const uint4*>(place(row, lane % 2));
  }
}

constexpr int STAGED_COLUMN = 132;  // floats of shared memory for the 128 sums of a row of x

// Sums of SPLITS blocks of a cluster, that of rank 0 first, for 128 rows of the weight and COLUMNS rows of x: each block
// stages its own, adds up those of some rows of x, and writes them as write_transposed does.
template <int COLUMNS, int SPLITS, class Out>
__device__ __forceinline__ void write_sum_of_splits(const void* accumulators, void* staging, void* out, int n, int width,
                                                    int x_first, int w_first, int w_end, float factor, int rank,
                                                    int thread) {
  const float* c = static_cast<const float*>(accumulators);
  const int lane = thread % 32, warp = thread / 32;
  float* mine = static_cast<float*>(staging);
#pragma unroll
  for (int i = 0; i < COLUMNS / 2; ++i)
    mine[(i / 4 * 8 + lane % 4 * 2 + i % 2) * STAGED_COLUMN + warp * 16 + i / 2 % 2 * 8 + lane / 4] = c[i];
  cluster_barrier();
  const int w_row = w_first + thread % 128;
  for (int row = rank * 2 + thread / 128; row < COLUMNS; row += 2 * SPLITS) {
    float sum = 0;
#pragma unroll
    for (int s = 0; s < SPLITS; ++s) sum += load_from(mine + row * STAGED_COLUMN + thread % 128, s);
    if (x_first + row < n && w_row < w_end)
      write(sum * factor, static_cast<Out*>(out) + static_cast<size_t>(x_first + row) * width + w_row);
  }
  cluster_barrier();  // nobody leaves while others still read
}

// As write_transposed, float32, which needs no staging: eight lanes write 32 bytes of a row.
template <int COLUMNS>
__device__ __forceinline__ void write_transposed_float(const void* accumulators, void* out, int n, int width, int x_first,
                                                       int w_first, int thread) {
  const float* c = static_cast<const float*>(accumulators);
  const int lane = thread % 32, w_row = w_first + thread / 32 * 16 + lane / 4;
#pragma unroll
  for (int i = 0; i < COLUMNS / 2; ++i) {
    const int row = x_first + i / 4 * 8 + lane % 4 * 2 + i % 2, column = w_row + i / 2 % 2 * 8;
    if (row < n && column < width) static_cast<float*>(out)[static_cast<size_t>(row) * width + column] = c[i];
  }
}

}  // namespace thalweg
