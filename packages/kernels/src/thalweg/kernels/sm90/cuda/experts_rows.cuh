// Columns of a row of MXFP8 as bfloat16, exactly: e4m3 has a place in bfloat16 when its exponent gets one.

#include <cuda_bf16.h>

#include <cstdint>

namespace thalweg {

__device__ __forceinline__ uint32_t scaled_pair(uint32_t pair, uint32_t factor) {
  // e4m3 in the bits of bfloat16 is the value times 2^-120; one factor for that and the scale might overflow.
  uint32_t product;
  asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(product) : "r"(pair), "r"(247u * 0x00800080u));
  asm("mul.rn.bf16x2 %0, %0, %1;" : "+r"(product) : "r"(factor));
  return product;
}

// wide: the even or the odd ones of the 16 columns.
__device__ __forceinline__ void widen(void* wide, const void* narrow, uint32_t scale, bool is_odd) {
  const uint32_t factor = scale == 0 ? 0x00400040u : scale * 0x00800080u;
  const uint32_t* words = static_cast<const uint32_t*>(narrow);
  uint32_t* pairs = static_cast<uint32_t*>(wide);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const uint32_t word = is_odd ? words[i] : words[i] << 8;
    pairs[i] = scaled_pair((word & 0x80008000u) | ((word >> 4) & 0x07f007f0u), factor);
  }
}

}  // namespace thalweg
