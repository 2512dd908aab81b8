// Where shared memory lies for instructions that take a number, not a pointer.
#pragma once
#include <cstdint>

namespace thalweg {

__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

}  // namespace thalweg
