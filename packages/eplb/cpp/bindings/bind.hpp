#pragma once

#include <pybind11/pybind11.h>

namespace thalweg::eplb {

void bind_reference(pybind11::module_& module);
void bind_search(pybind11::module_& module);
void bind_split(pybind11::module_& module);

}  // namespace thalweg::eplb
