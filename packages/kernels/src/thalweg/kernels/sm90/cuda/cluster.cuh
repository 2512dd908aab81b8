// Blocks of a cluster: how they wait for each other, and where one finds what lies in the shared memory of another.
#pragma once

namespace thalweg {

__device__ __forceinline__ void cluster_arrive() { asm volatile("barrier.cluster.arrive.release;" ::: "memory"); }
__device__ __forceinline__ void cluster_wait() { asm volatile("barrier.cluster.wait.acquire;" ::: "memory"); }

// Where `pointer` to shared memory lies in the block of a rank.
template <class T>
__device__ __forceinline__ T* peer(T* pointer, int rank) {
  unsigned long long there;
  asm volatile("mapa.u64 %0, %1, %2;" : "=l"(there) : "l"(pointer), "r"(rank));
  return reinterpret_cast<T*>(there);
}

__device__ __forceinline__ float larger_or_nan(float a, float b) {
  float result;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(b));
  return result;
}

}  // namespace thalweg
