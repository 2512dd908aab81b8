#pragma once

#include <pybind11/pybind11.h>

#include "thalweg/scheduler/flops.hpp"

namespace thalweg::scheduler {

// The C++ values of a thalweg.scheduler.flops.FlopsModel; TypeError for anything else.
FlopsModel read_flops_model(const pybind11::object& given);

}  // namespace thalweg::scheduler
