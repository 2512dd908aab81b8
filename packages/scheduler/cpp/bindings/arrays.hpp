#pragma once

#include <pybind11/numpy.h>

#include <cstdint>
#include <span>
#include <vector>

namespace thalweg::scheduler {

// One empty vector per element type, shared by whoever has nothing to show: most lists of most plans are empty.
struct EmptyArrays {
  pybind11::object int8 = pybind11::array_t<std::int8_t>(0);
  pybind11::object int32 = pybind11::array_t<std::int32_t>(0);
  pybind11::object int64 = pybind11::array_t<std::int64_t>(0);
  pybind11::object boolean = pybind11::array_t<bool>(0);
  pybind11::object int32_pairs = pybind11::array_t<std::int32_t>(std::vector<pybind11::ssize_t>{0, 2});

  const pybind11::object& of(std::int8_t) const noexcept { return int8; }
  const pybind11::object& of(std::int32_t) const noexcept { return int32; }
  const pybind11::object& of(std::int64_t) const noexcept { return int64; }
  const pybind11::object& of(bool) const noexcept { return boolean; }
};

// Makes arrays over memory that one owner keeps alive: nothing is copied, and the arrays are writable.
class ArrayMaker {
 public:
  ArrayMaker(pybind11::handle owner, const EmptyArrays& empty) : owner_(owner), empty_(empty) {}

  template <class Value>
  pybind11::object operator()(std::span<Value> values) const {
    if (values.empty()) return empty_.of(Value{});
    const pybind11::ssize_t shape[] = {static_cast<pybind11::ssize_t>(values.size())};
    return make(pybind11::dtype::num_of<Value>(), shape, values.data());
  }

  // [values / 2, 2], row-major.
  pybind11::object pairs(std::span<std::int32_t> values) const {
    return values.empty() ? empty_.int32_pairs : (*this)(values, values.size() / 2, 2);
  }

  // [rows, width], row-major.
  template <class Value>
  pybind11::object operator()(std::span<Value> values, std::size_t rows, std::size_t width) const {
    const pybind11::ssize_t shape[] = {static_cast<pybind11::ssize_t>(rows), static_cast<pybind11::ssize_t>(width)};
    return make(pybind11::dtype::num_of<Value>(), shape, values.data());
  }

 private:
  pybind11::object make(int type_number, std::span<const pybind11::ssize_t> shape, void* data) const;

  pybind11::handle owner_;
  const EmptyArrays& empty_;
};

// Hand `value` over to Python; the capsule destroys it.
template <class Value>
pybind11::capsule own(Value* value) {
  return pybind11::capsule(value, [](void* pointer) { delete static_cast<Value*>(pointer); });
}

// What the core may read in place: numpy also makes contiguous arrays whose elements are not aligned.
constexpr int readable = int{pybind11::array::c_style} | int{pybind11::detail::npy_api::NPY_ARRAY_ALIGNED_};

// A prompt given as any one-dimensional integer array. Throws RequestError.
std::vector<std::int32_t> prompt_tokens(const pybind11::array& token_ids);

}  // namespace thalweg::scheduler
