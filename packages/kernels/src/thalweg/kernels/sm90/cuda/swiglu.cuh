// One element of the clamped SwiGLU: TileLang has no minimum that keeps NaN, and no exponential between a good one and
// a fast one.

__device__ __forceinline__ float smaller(float a, float b) {
  float result;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(b));
  return result;
}

__device__ __forceinline__ float larger(float a, float b) {
  float result;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(b));
  return result;
}

// 1 / (1 + exp(-x)) up to 2^-21 of it, in seven instructions.
//
// exp(-x) is 2^t with t = -x log2(e). What t loses by rounding, and log2(e) by being a float32, is a dozen last bits of
// the power at x = -20; a factor 1 + rest ln(2) makes it good. Power and reciprocal of the device are off by one or two
// last bits.
__device__ __forceinline__ float sigmoid(float x) {
  const float t = x * -1.44269504f;
  const float rest = fmaf(x, -1.925963e-8f, fmaf(x, -1.44269504f, -t));
  float power, result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(t));
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(fmaf(power, fmaf(rest, 0.693147181f, 1.0f), 1.0f)));
  return result;
}

// In the order of the reference; limit is positive.
__device__ __forceinline__ float swiglu(float gate, float up, float limit) {
  const float g = smaller(gate, limit);
  return g * sigmoid(g) * larger(smaller(up, limit), -limit);
}
