#pragma once

#include <cstddef>
#include <memory>
#include <span>

namespace thalweg::scheduler {

// One allocation that several arrays are carved from. Wide element types come first, so that all stay aligned.
class ArrayStorage {
 public:
  ArrayStorage() = default;
  explicit ArrayStorage(std::size_t num_bytes)
      : bytes_(std::make_unique_for_overwrite<std::byte[]>(num_bytes)), next_(bytes_.get()) {}

  // The next `count` elements, not initialised.
  template <class Value>
  std::span<Value> take(std::size_t count) {
    auto* begin = reinterpret_cast<Value*>(next_);
    next_ += count * sizeof(Value);
    return {begin, count};
  }

 private:
  std::unique_ptr<std::byte[]> bytes_;
  std::byte* next_ = nullptr;
};

}  // namespace thalweg::scheduler
