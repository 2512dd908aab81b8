#pragma once

#include <pybind11/pybind11.h>

namespace thalweg::eplb {

// One function per file of this folder.

}  // namespace thalweg::eplb
