#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "thalweg/scheduler/verify_budget.hpp"

namespace thalweg::scheduler {

// A step-time curve given as (graph size, milliseconds).
inline std::vector<StepTime> step_times(const std::vector<std::pair<std::int64_t, double>>& points) {
  std::vector<StepTime> times;
  for (const auto& [graph_size, time_ms] : points) times.push_back({.graph_size = graph_size, .time_ms = time_ms});
  return times;
}

}  // namespace thalweg::scheduler
