#pragma once

#include <array>
#include <cstddef>
#include <cstring>

namespace thalweg::scheduler {

// Copy a handful of values: per row, calling memmove would cost more than the copy.
template <class Value>
inline void copy_few(const Value* from, std::size_t count, Value* to) noexcept {
  constexpr std::size_t half = 16 / sizeof(Value);
  if (count < half || count > 2 * half) {
    for (std::size_t i = 0; i < count; ++i) to[i] = from[i];
    return;
  }
  // Two pieces of fixed size that overlap in the middle.
  std::array<Value, half> head;
  std::array<Value, half> tail;
  std::memcpy(head.data(), from, sizeof(head));
  std::memcpy(tail.data(), from + count - half, sizeof(tail));
  std::memcpy(to, head.data(), sizeof(head));
  std::memcpy(to + count - half, tail.data(), sizeof(tail));
}

}  // namespace thalweg::scheduler
