#pragma once

#include <array>
#include <cstddef>
#include <cstring>

namespace thalweg::scheduler {

// 16 bytes, whatever they are.
template <class Value>
inline void copy_piece(const Value* from, Value* to) noexcept {
  std::array<Value, 16 / sizeof(Value)> piece;
  std::memcpy(piece.data(), from, sizeof(piece));
  std::memcpy(to, piece.data(), sizeof(piece));
}

// Copy what is mostly a handful of values: for those, calling memcpy would cost more than the copy.
template <class Value>
inline void copy_few(const Value* from, std::size_t count, Value* to) noexcept {
  constexpr std::size_t width = 16 / sizeof(Value);
  if (count < width) {
    for (std::size_t i = 0; i < count; ++i) to[i] = from[i];
    return;
  }
  if (count > 2 * width) {
    std::memcpy(to, from, count * sizeof(Value));
    return;
  }
  // Pieces of fixed size; the last one overlaps the one before.
  for (std::size_t i = 0; i + width < count; i += width) copy_piece(from + i, to + i);
  copy_piece(from + count - width, to + count - width);
}

}  // namespace thalweg::scheduler
