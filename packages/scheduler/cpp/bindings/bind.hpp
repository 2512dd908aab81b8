#pragma once

#include <pybind11/pybind11.h>

namespace thalweg::scheduler {

void bind_block_pool(pybind11::module_& module);
void bind_flops(pybind11::module_& module);
void bind_scheduler(pybind11::module_& module);
void bind_verify_budget(pybind11::module_& module);

}  // namespace thalweg::scheduler
