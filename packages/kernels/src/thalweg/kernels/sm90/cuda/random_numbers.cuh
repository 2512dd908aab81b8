// Random numbers that depend on a seed, a position and a case alone.
#pragma once

namespace thalweg {

constexpr unsigned long long GAMMA = 0x9E3779B97F4A7C15ull;
constexpr int FRESH_CASE = 0, RESIDUAL_CASE = 1, COIN_CASE = 2;

__device__ __forceinline__ unsigned long long splitmix(unsigned long long x) {
  unsigned long long z = x + GAMMA;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  return z ^ (z >> 31);
}

__device__ __forceinline__ double unit_interval(unsigned long long z) { return static_cast<double>(z >> 11) * 0x1p-53; }

// The hash of (seed, position, case).
__device__ __forceinline__ unsigned long long stream_of(unsigned long long seed, long long position, int which) {
  const unsigned long long state = (3 * static_cast<unsigned long long>(position) + which) * GAMMA;
  return splitmix(which == COIN_CASE ? seed ^ state : seed + (state ^ (state << 13)));
}

}  // namespace thalweg
