// How a row comes into the shared memory of a cluster, and what can be made of it there without exponentials.
#pragma once
#include "row_draws.cuh"

namespace thalweg {

template <int THREADS, int CLUSTER>
struct RowCopies {
  using Team = Cluster<THREADS, CLUSTER>;
  using Shared = SearchShared<THREADS>;
  static constexpr int MOST_LISTED = Shared::LISTED / 2;
  static constexpr u32 NONE = 0xFFFFFFFFu;

  // Fill the slice from memory. The largest value, NaN if there is one.
  static __device__ __forceinline__ float load(const float* from, float* to, int count) {
    constexpr int FLIGHT = 8;
    float largest = -INFINITY;
    if (reinterpret_cast<u64>(from) % 16 == 0) {
      const float4* quads = reinterpret_cast<const float4*>(from);
      const int whole = count / 4;
#pragma unroll 1
      for (int base = threadIdx.x; base < whole; base += THREADS * FLIGHT) {
        float4 v[FLIGHT];
#pragma unroll
        for (int i = 0; i < FLIGHT; ++i) v[i] = __ldcs(quads + min(base + i * THREADS, whole - 1));
#pragma unroll
        for (int i = 0; i < FLIGHT; ++i) {
          if (base + i * THREADS < whole) reinterpret_cast<float4*>(to)[base + i * THREADS] = v[i];
          largest = larger_or_nan(largest, larger_or_nan(larger_or_nan(v[i].x, v[i].y), larger_or_nan(v[i].z, v[i].w)));
        }
      }
      const int rest = 4 * whole + threadIdx.x;
      if (rest < count) {
        to[rest] = from[rest];
        largest = larger_or_nan(largest, from[rest]);
      }
    } else {
#pragma unroll 4
      for (int i = threadIdx.x; i < count; i += THREADS) {
        const float v = __ldcs(from + i);
        to[i] = v;
        largest = larger_or_nan(largest, v);
      }
    }
    const int padding = (count + 3) / 4 * 4 - count;
    if (threadIdx.x < padding) to[count + threadIdx.x] = NAN;
    return largest;
  }

  // Write function(column, value) for every column of the slice.
  template <class Function>
  static __device__ __forceinline__ void write(const Slice& slice, float* to, Function function) {
    const float* values = reinterpret_cast<const float*>(slice.quads);
    if (reinterpret_cast<u64>(to) % 16 == 0) {
      const int whole = slice.count / 4;
#pragma unroll 2
      for (int q = threadIdx.x; q < whole; q += THREADS) {
        const float4 v = slice.quads[q];
        const int i = 4 * q;
        __stcs(reinterpret_cast<float4*>(to) + q,
               make_float4(function(i, v.x), function(i + 1, v.y), function(i + 2, v.z), function(i + 3, v.w)));
      }
      const int rest = 4 * whole + threadIdx.x;
      if (rest < slice.count) to[rest] = function(rest, values[rest]);
    } else {
      for (int i = threadIdx.x; i < slice.count; i += THREADS) to[i] = function(i, values[i]);
    }
  }

  // Lowest column of the row that has its largest value. ids: shared [WARPS].
  static __device__ __forceinline__ u32 find_largest(u32* ids, const Slice& slice, int first, float largest) {
    u32 id = NONE;
    for (int i = threadIdx.x; i < slice.count; i += THREADS)
      if (reinterpret_cast<const float*>(slice.quads)[i] == largest) id = min(id, static_cast<u32>(first + i));
    Team::put(id, ids, Smaller());
    Team::meet();
    return Team::gathered(ids, NONE, Smaller());
  }

  // Values and ids of what is kept, from the largest to the smallest, as the first block of the cluster has them.
  static __device__ __forceinline__ void list_largest(Shared& s, const Slice& slice, const Kept& is_kept, int rank,
                                                      int first, int count, const float* from, float* values,
                                                      int* ids) {
    if (threadIdx.x == 0) s.num_pairs = 0;
    Team::meet();
    u32* num_pairs = Team::of(&s.num_pairs, 0);
    u64* pairs = Team::of(s.pairs, 0);
    slice.each<THREADS>([&](int i, float t) {
      if (!is_kept(i, t)) return;
      const u32 place = atomicAdd(num_pairs, 1u);
      if (place < MOST_LISTED) pairs[place] = static_cast<u64>(key_of(t)) << 32 | ~static_cast<u32>(first + i);
    });
    Team::meet();
    if (rank != 0) return;
    const int listed = min(static_cast<int>(s.num_pairs), count);
    int size = 2;
    while (size < count) size *= 2;
    for (int i = listed + threadIdx.x; i < size; i += THREADS) s.pairs[i] = 0;
    __syncthreads();
    Team::sort_descending(s.pairs, size);
    for (int i = threadIdx.x; i < count; i += THREADS) {
      const int id = static_cast<int>(~static_cast<u32>(s.pairs[i]));
      values[i] = id >= 0 ? from[id] : NAN;  // no id: among NaN
      ids[i] = id;
    }
  }
};

}  // namespace thalweg
