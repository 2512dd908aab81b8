// Casts of eight neighbouring bfloat16 to MXFP8 and MXFP4, two at a time: TileLang has no arithmetic on pairs of them.
//
// A group of 32 belongs to four neighbouring lanes, and all lanes of a warp must call. A scale follows from the bits of
// the largest magnitude, and multiplying by its inverse, a power of two, rounds nothing that a code could tell.

struct MxGroup {
  unsigned x[4];  // pairs of bfloat16 of this lane, NaN replaced by 0
  int largest;    // bits of the largest magnitude of the group
};

__device__ __forceinline__ unsigned pair_max(unsigned a, unsigned b) {
  unsigned result;
  asm("max.NaN.bf16x2 %0, %1, %2;" : "=r"(result) : "r"(a), "r"(b));
  return result;
}

__device__ __forceinline__ unsigned pair_product(unsigned a, unsigned b) {
  unsigned result;
  asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(result) : "r"(a), "r"(b));
  return result;
}

__device__ __forceinline__ unsigned pair_sum(unsigned a, unsigned b, unsigned c) {
  unsigned result;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(result) : "r"(a), "r"(b), "r"(c));
  return result;
}

__device__ __forceinline__ unsigned without_nan(unsigned pair) {
  const unsigned low = (pair & 0x7FFFu) > 0x7F80u ? 0u : pair & 0xFFFFu;
  const unsigned high = (pair >> 16 & 0x7FFFu) > 0x7F80u ? 0u : pair & 0xFFFF0000u;
  return low | high;
}

// The bits of the largest magnitude of a group, a NaN if it has one.
__device__ __forceinline__ int largest_of(const unsigned (&x)[4]) {
  unsigned largest = x[0] & 0x7FFF7FFFu;
#pragma unroll
  for (int i = 1; i < 4; ++i) largest = pair_max(largest, x[i] & 0x7FFF7FFFu);
  largest = pair_max(largest, __shfl_xor_sync(~0u, largest, 1));
  largest = pair_max(largest, __shfl_xor_sync(~0u, largest, 2));
  return max(largest >> 16, largest & 0xFFFFu);
}

__device__ __forceinline__ MxGroup mx_group(const void* values) {
  MxGroup group;
  memcpy(group.x, values, sizeof(group.x));
  group.largest = largest_of(group.x);
  if (__any_sync(~0u, group.largest > 0x7F80)) {
#pragma unroll
    for (int i = 0; i < 4; ++i) group.x[i] = without_nan(group.x[i]);
    group.largest = largest_of(group.x);
  }
  return group;
}

// The exponent of the smallest power of two that is no less than the largest magnitude over that of the format, whose
// own is 2^format_exponent times a mantissa, below; the exponent goes up where the mantissa is beyond it. An infinity
// has scale 255, which is NaN.
__device__ __forceinline__ int mx_exponent(int largest, int mantissa, int format_exponent, int least) {
  return largest == 0x7F80 ? 255 : max((largest + 0x7F - mantissa) / 128 - format_exponent, least);
}

__device__ __forceinline__ unsigned mx_factor(int exponent) { return max(254 - exponent, 0) * 0x00800080u; }

__device__ __forceinline__ unsigned e4m3_pair(unsigned pair) {
  unsigned short codes;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;"
      : "=h"(codes)
      : "f"(__uint_as_float(pair & 0xFFFF0000u)), "f"(__uint_as_float(pair << 16)));
  return codes;
}

// values: bfloat16 [8]. codes: e4m3 [8]. Returns the ue8m0 byte of the group.
__device__ __forceinline__ int mxfp8_cast(const void* values, void* codes) {
  const MxGroup group = mx_group(values);
  const int exponent = mx_exponent(group.largest, 0x60, 8, 105);  // 448 = 1.75 * 2^8; 1e-4 needs 2^-22
  const unsigned factor = mx_factor(exponent);
  unsigned code[4], words[2];
#pragma unroll
  for (int i = 0; i < 4; ++i) code[i] = e4m3_pair(pair_product(group.x[i], factor));
  words[0] = code[0] | code[1] << 16;
  words[1] = code[2] | code[3] << 16;
  memcpy(codes, words, sizeof(words));
  return exponent;
}

// Codes of magnitudes in bits 6 to 8 of both halves. An infinity times 0 spoils those of its group, which has no value.
//
// A number of e2m1 times 2^-126 is the bfloat16 whose upper bits are its code. What is to be rounded gets 64 times its
// power of two (1 for all below) added, so that one addition rounds to the spacing there, and loses it again.
__device__ __forceinline__ unsigned e2m1_pair(unsigned magnitudes) {
  const unsigned spacing = pair_product(pair_max(magnitudes & 0x7F807F80u, 0x3F803F80u), 0x03800380u);
  return pair_sum(spacing, 0xBF80BF80u, pair_sum(magnitudes, 0x00800080u, spacing));
}

// values: bfloat16 [8]. codes: uint8 [4], two e2m1 each. Returns the ue8m0 byte of the group.
__device__ __forceinline__ int mxfp4_cast(const void* values, void* codes) {
  const MxGroup group = mx_group(values);
  const int exponent = mx_exponent(group.largest, 0x40, 2, 1);  // 6 = 1.5 * 2^2
  const unsigned factor = mx_factor(exponent);
  unsigned code[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    code[i] = e2m1_pair(pair_product(group.x[i] & 0x7FFF7FFFu, factor));
    code[i] |= group.x[i] >> 6 & 0x02000200u;
  }
  // The two nibbles of a pair are 16 bits apart.
  const unsigned low = code[0] >> 6 | code[1] << 2, high = code[2] >> 6 | code[3] << 2;
  const unsigned packed = __byte_perm(low | low >> 12, high | high >> 12, 0x5410);
  memcpy(codes, &packed, sizeof(packed));
  return exponent;
}
