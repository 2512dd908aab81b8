#pragma once

#include <pybind11/numpy.h>

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace thalweg::scheduler {

// Arrays over vectors that one owner keeps alive: nothing is copied.
class ArrayMaker {
 public:
  explicit ArrayMaker(pybind11::handle owner) : owner_(owner) {}

  template <class Value>
  pybind11::array operator()(const std::vector<Value>& values) const {
    return pybind11::array_t<Value>(static_cast<pybind11::ssize_t>(values.size()), values.data(), owner_);
  }

  // [rows, width], row-major.
  template <class Value>
  pybind11::array operator()(const std::vector<Value>& values, std::size_t rows, std::size_t width) const {
    return pybind11::array_t<Value>({rows, width}, values.data(), owner_);
  }

 private:
  pybind11::handle owner_;
};

// Hand `value` over to Python; the capsule destroys it.
template <class Value>
pybind11::capsule own(Value* value) {
  return pybind11::capsule(value, [](void* pointer) { delete static_cast<Value*>(pointer); });
}

// Field `name` of a StepResult: an array of exactly this dtype with shape [rows] or [rows, width]. Throws
// std::invalid_argument naming the field, what it is and what this step needs.
template <class Value>
class CheckedArray {
 public:
  CheckedArray(pybind11::handle result, const char* name, std::size_t rows, std::optional<std::size_t> width,
               bool may_be_unknown = false);

  std::span<const Value> values() const { return {array_.data(), static_cast<std::size_t>(array_.size())}; }

 private:
  pybind11::array_t<Value, pybind11::array::c_style> array_;
};

extern template class CheckedArray<std::int8_t>;
extern template class CheckedArray<std::int32_t>;
extern template class CheckedArray<float>;

// A prompt given as any one-dimensional integer array. Throws RequestError.
std::vector<std::int32_t> prompt_tokens(const pybind11::array& token_ids);

}  // namespace thalweg::scheduler
