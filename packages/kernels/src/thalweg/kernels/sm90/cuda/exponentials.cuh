// Exponentials in float64 that are rounded to whole numbers, whose sums have no rounding: they do not depend on order.
#pragma once

namespace thalweg {

constexpr double TWO_52 = 4503599627370496.0, ROUNDING = 6755399441055744.0, LOG2_E = 1.4426950408889634;

// 2^r for |r| <= 1/2, to about 2^-52.
__device__ __forceinline__ double power_of_two(double r) {
  double p = 0x1.e6063f7217bc6p-28;
  p = __fma_rn(p, r, 0x1.b675bca4eeebbp-24);
  p = __fma_rn(p, r, 0x1.62bfd47773353p-20);
  p = __fma_rn(p, r, 0x1.ffcb54062e698p-17);
  p = __fma_rn(p, r, 0x1.430913096fd9fp-13);
  p = __fma_rn(p, r, 0x1.5d87fe9d7a584p-10);
  p = __fma_rn(p, r, 0x1.3b2ab6fba1ddap-7);
  p = __fma_rn(p, r, 0x1.c6b08d703ce49p-5);
  p = __fma_rn(p, r, 0x1.ebfbdff82c598p-3);
  p = __fma_rn(p, r, 0x1.62e42fefa3a19p-1);
  return __fma_rn(p, r, 0x1.0000000000000p+0);
}

// e^(t - largest), and its mass: that times 2^unit, rounded to a whole number. About 16 operations in float64.
struct Exponential {
  float largest, lowest;  // what lies below `lowest` is as good as lowest: its e^-600 is 0
  double wide_largest;
  bool is_coarse;         // floats near the largest lie so far apart that all others are 0

  __device__ __forceinline__ explicit Exponential(float l)
      : largest(l), lowest(__fsub_rn(l, 600.0f)), wide_largest(l) {
    const float reach = __fsub_rn(largest, lowest);
    is_coarse = !(reach > 500.0f && reach < 690.0f);
  }

  __device__ __forceinline__ double times_power(float t, int exponent) const {
    if (is_coarse) return t == largest ? __hiloint2double((1023 + exponent) << 20, 0) : 0.0;
    return fine_times_power(t, exponent);
  }

  // If not is_coarse.
  __device__ __forceinline__ double fine_times_power(float t, int exponent) const {
    const double d = static_cast<double>(fmaxf(t, lowest)) - wide_largest;
    const double shifted = __fma_rn(d, LOG2_E, ROUNDING);
    const double r = __fma_rn(d, LOG2_E, ROUNDING - shifted);
    const double p = power_of_two(r);
    return __hiloint2double(__double2hiint(p) + ((__double2loint(shifted) + exponent) << 20), __double2loint(p));
  }

  __device__ __forceinline__ double share(float t) const { return times_power(t, 0); }

  __device__ __forceinline__ double mass(float t, int unit) const {
    return __dadd_rn(__dadd_rn(times_power(t, unit), TWO_52), -TWO_52);
  }
};

}  // namespace thalweg
