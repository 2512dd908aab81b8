// What threads that share a row do together: integers in the order of floats; sums and extremes over a warp, a block,
// or all blocks of a cluster.
#pragma once
#include "instructions.cuh"

namespace thalweg {

using u32 = unsigned int;
using u64 = unsigned long long;

// Integers in the order of floats; both zeros have the same one.
__device__ __forceinline__ u32 key_of(float t) {
  const u32 bits = __float_as_uint(__fadd_rn(t, 0.0f));
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}
__device__ __forceinline__ float value_of(u32 key) {
  return __uint_as_float(key & 0x80000000u ? key & 0x7FFFFFFFu : ~key);
}

struct Sum {
  template <class T>
  __device__ __forceinline__ T operator()(T a, T b) const { return a + b; }
};
struct LargerOrNan {
  __device__ __forceinline__ float operator()(float a, float b) const { return larger_or_nan(a, b); }
};
struct Smaller {
  template <class T>
  __device__ __forceinline__ T operator()(T a, T b) const { return a < b ? a : b; }
};

template <class T, class Op>
__device__ __forceinline__ T over_warp(T value, Op op) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) value = op(value, __shfl_xor_sync(0xFFFFFFFFu, value, step));
  return value;
}

// Sum over the lanes before this one.
template <class T>
__device__ __forceinline__ T before_in_warp(T value) {
  const int lane = threadIdx.x % 32;
  T sum = value;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const T other = __shfl_up_sync(0xFFFFFFFFu, sum, step);
    if (lane >= step) sum += other;
  }
  const T before = __shfl_up_sync(0xFFFFFFFFu, sum, 1);
  return lane == 0 ? T(0) : before;
}

template <int THREADS>
struct Block {
  static constexpr int WARPS = THREADS / 32;
  static __device__ __forceinline__ int lane() { return threadIdx.x % 32; }
  static __device__ __forceinline__ int warp() { return threadIdx.x / 32; }

  // Sum over the threads before this one, and of all. slots: shared [WARPS], not in use before the next barrier.
  template <class T>
  static __device__ __forceinline__ T before(T value, T* slots, T& total) {
    const T own = before_in_warp(value);
    if (lane() == 31) slots[warp()] = own + value;
    __syncthreads();
    T earlier = T(0);
    total = T(0);
    for (int w = 0; w < WARPS; ++w) {
      if (w == warp()) earlier = total;
      total += slots[w];
    }
    __syncthreads();
    return earlier + own;
  }

  // Bring a list of a power of two into descending order.
  template <class T>
  static __device__ __forceinline__ void sort_descending(T* list, int size) {
    for (int part = 2; part <= size; part *= 2)
      for (int stride = part / 2; stride > 0; stride /= 2) {
        for (int i = threadIdx.x; i < size / 2; i += THREADS) {
          const int a = 2 * i - (i & (stride - 1)), b = a + stride;
          const T x = list[a], y = list[b];
          if ((x < y) == ((a & part) == 0)) {
            list[a] = y;
            list[b] = x;
          }
        }
        __syncthreads();
      }
  }
};

// Blocks that share a row. slots: shared [WARPS] of the same place in every block; they are written, then all blocks
// meet, then they are read, so that they may be written again behind the next meeting.
template <int THREADS, int CLUSTER>
struct Cluster : Block<THREADS> {
  using Block<THREADS>::WARPS, Block<THREADS>::lane, Block<THREADS>::warp;

  static __device__ __forceinline__ void meet() {
    if constexpr (CLUSTER > 1) {
      cluster_arrive();
      cluster_wait();
    } else {
      __syncthreads();
    }
  }
  template <class T>
  static __device__ __forceinline__ T* of(T* pointer, int rank) {
    return CLUSTER > 1 ? peer(pointer, rank) : pointer;
  }
  // What all warps of all blocks have put into slots, in the order of ranks and warps; behind a meeting.
  template <class T, class Op>
  static __device__ __forceinline__ T gathered(T* slots, T none, Op op) {
    T value = none;
#pragma unroll
    for (int item = lane(); item < CLUSTER * WARPS; item += 32)
      value = op(value, of(slots, item / WARPS)[item % WARPS]);
    return over_warp(value, op);
  }
  template <class T, class Op>
  static __device__ __forceinline__ void put(T value, T* slots, Op op) {
    value = over_warp(value, op);
    if (lane() == 0) slots[warp()] = value;
  }
};

}  // namespace thalweg
