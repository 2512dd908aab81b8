// What the budget refuses, and what it says then.
#pragma once

#include <array>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>

#include "thalweg/scheduler/errors.hpp"
#include "thalweg/scheduler/verify_budget.hpp"

namespace thalweg::scheduler {

// As few digits as tell the number apart from its neighbours.
template <class Number>
std::string shown(Number number) {
  std::array<char, 32> text{};
  return {text.data(), std::to_chars(text.data(), text.data() + text.size(), number).ptr};
}

inline void check_curve(std::span<const StepTime> points) {
  if (points.empty())
    throw ConfigError("points is empty; the curve needs at least one point (graph size, milliseconds)");
  for (std::size_t i = 0; i < points.size(); ++i) {
    const auto [size, time_ms] = points[i];
    const std::string name = "points[" + std::to_string(i) + "]";
    if (size < 1) throw ConfigError(name + " has size " + std::to_string(size) + "; sizes are at least 1");
    if (i > 0 && size <= points[i - 1].graph_size)
      throw ConfigError(name + " has size " + std::to_string(size) + " after " +
                        std::to_string(points[i - 1].graph_size) + "; sizes must ascend strictly");
    if (!std::isfinite(time_ms) || time_ms <= 0.0)
      throw ConfigError(name + " takes " + shown(time_ms) + " ms; times must be finite and above 0");
  }
}

// One comparison per draft covers a number that is none, one outside 0..1, and one that increases.
inline bool is_survival(std::span<const float> survival, std::span<const std::int32_t> offsets) noexcept {
  bool is_fine = true;
  for (std::size_t i = 0; i + 1 < offsets.size(); ++i) {
    float previous = 1.0F;
    for (auto j = static_cast<std::size_t>(offsets[i]); j < static_cast<std::size_t>(offsets[i + 1]); ++j) {
      is_fine &= survival[j] >= 0.0F && survival[j] <= previous;
      previous = survival[j];
    }
  }
  return is_fine;
}

[[noreturn]] inline void refuse_survival(const std::string& name, std::span<const float> survival,
                                  std::span<const std::int32_t> offsets) {
  for (std::size_t i = 0; i + 1 < offsets.size(); ++i) {
    const auto row = survival.subspan(static_cast<std::size_t>(offsets[i]),
                                      static_cast<std::size_t>(offsets[i + 1] - offsets[i]));
    const std::string where = name + "[" + std::to_string(i) + "]";
    for (std::size_t j = 0; j < row.size(); ++j) {
      if (!(row[j] >= 0.0F && row[j] <= 1.0F))
        throw std::invalid_argument(where + "[" + std::to_string(j) + "] is " + shown(row[j]) +
                                    "; survival is a number from 0 to 1");
      if (j > 0 && row[j] > row[j - 1])
        throw std::invalid_argument(where + " goes from " + shown(row[j - 1]) + " to " + shown(row[j]) + " at draft " +
                                    std::to_string(j) + "; survival never increases");
    }
  }
  throw InvariantError(name + " is refused without a reason");
}

inline void check_survival(const char* name, std::span<const float> survival, std::span<const std::int32_t> offsets) {
  if (survival.size() != static_cast<std::size_t>(offsets.back()))
    throw std::invalid_argument(std::string(name) + " has " + std::to_string(survival.size()) +
                                " drafts; offsets end at " + std::to_string(offsets.back()));
  if (!is_survival(survival, offsets)) refuse_survival(name, survival, offsets);
}

inline void check_size(const char* name, std::int64_t size) {
  if (size < 1)
    throw std::invalid_argument(std::string(name) + " is " + std::to_string(size) + "; at least 1 is needed");
}

inline void check_time(const char* name, double time_ms) {
  if (!std::isfinite(time_ms) || time_ms < 0.0)
    throw std::invalid_argument(std::string(name) + " is " + shown(time_ms) + "; it must be finite and at least 0");
}

}  // namespace thalweg::scheduler
