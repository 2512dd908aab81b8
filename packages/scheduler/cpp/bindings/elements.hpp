#pragma once

#include <pybind11/numpy.h>

#include <cstddef>
#include <span>
#include <string>

#include "arrays.hpp"

namespace thalweg::scheduler {

using ArrayShape = std::span<const std::size_t>;

// Throws std::invalid_argument that says what `object` is, and that `name` must be an array of dtype and shape.
// may_be_unknown: [N, 0] is accepted too.
[[noreturn]] void refuse_array(pybind11::handle object, const pybind11::str& name, const pybind11::dtype& dtype,
                               ArrayShape shape, bool may_be_unknown);

bool has_shape(const pybind11::array& array, ArrayShape shape, bool may_be_unknown);

template <class Value>
bool has_dtype(const pybind11::array& array) {
  const pybind11::dtype dtype = array.dtype();
  return dtype.normalized_num() == pybind11::dtype::num_of<Value>() &&
         (dtype.byteorder() == '=' || dtype.byteorder() == '|');
}

// The elements of an array that somebody passed in; `keep` gets the array that they live in. Throws like
// `refuse_array`.
template <class Value>
std::span<const Value> elements(pybind11::object object, const pybind11::str& name, ArrayShape shape,
                                bool may_be_unknown, pybind11::object& keep) {
  namespace py = pybind11;
  if (!py::isinstance<py::array>(object))
    refuse_array(object, name, py::dtype::of<Value>(), shape, may_be_unknown);
  auto array = py::reinterpret_steal<py::array>(object.release());
  if (!has_dtype<Value>(array) || !has_shape(array, shape, may_be_unknown))
    refuse_array(array, name, py::dtype::of<Value>(), shape, may_be_unknown);
  if ((array.flags() & readable) != readable) {
    array = py::array_t<Value, readable>::ensure(array);
    if (!array) throw py::error_already_set();
  }
  const std::span<const Value> values(static_cast<const Value*>(array.data()), static_cast<std::size_t>(array.size()));
  keep = std::move(array);
  return values;
}

}  // namespace thalweg::scheduler
