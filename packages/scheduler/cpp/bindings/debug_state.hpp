#pragma once

#include <pybind11/pybind11.h>

#include "thalweg/scheduler/scheduler.hpp"

namespace thalweg::scheduler {

// Everything that decides what happens next, in plain values, for traces and tests.
pybind11::dict debug_state(const Scheduler& scheduler);

}  // namespace thalweg::scheduler
