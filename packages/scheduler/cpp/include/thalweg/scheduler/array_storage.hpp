#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "thalweg/scheduler/errors.hpp"

namespace thalweg::scheduler {

// One allocation that several arrays are carved from. Wide element types come first, so that all stay aligned.
//
// There is a gap between two arrays. Without it columns of 512 or 1024 rows would lie a power of two apart: their
// elements for one row would fight for the same few lines of the processor's cache.
class ArrayStorage {
 public:
  ArrayStorage() = default;
  // num_bytes: of `num_arrays` arrays together.
  ArrayStorage(std::size_t num_bytes, std::size_t num_arrays)
      : bytes_(std::make_unique_for_overwrite<std::byte[]>(num_bytes + num_arrays * gap)),
        next_(bytes_.get()),
        end_(next_ + num_bytes + num_arrays * gap) {}

  // The next `count` elements, not initialised.
  template <class Value>
  std::span<Value> take(std::size_t count) {
    auto* begin = reinterpret_cast<Value*>(next_);
    next_ += count * sizeof(Value) + gap;
    if (next_ > end_) throw InvariantError("the arrays of a step need more memory than was counted for them");
    return {begin, count};
  }

 private:
  static constexpr std::size_t gap = 64;

  std::unique_ptr<std::byte[]> bytes_;
  std::byte* next_ = nullptr;
  std::byte* end_ = nullptr;
};

}  // namespace thalweg::scheduler
