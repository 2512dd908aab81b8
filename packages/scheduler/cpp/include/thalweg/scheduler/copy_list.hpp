#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <span>
#include <vector>

namespace thalweg::scheduler {

struct Copy {
  std::int32_t source = 0;
  std::int32_t target = 0;
};

// State slots and blocks to copy on the device. Each source has a holder of its own until the copy is known to be done.
struct CopyList {
  std::vector<Copy> states;
  std::vector<Copy> blocks;

  bool empty() const noexcept { return states.empty() && blocks.empty(); }
  void clear() noexcept {
    states.clear();
    blocks.clear();
  }
};

// Take the copies into any of `targets` out of the list and return them.
inline std::vector<Copy> take_into(std::vector<Copy>& copies, std::span<const std::int32_t> targets) {
  const auto is_wanted = [&](const Copy& copy) {
    return std::find(targets.begin(), targets.end(), copy.target) != targets.end();
  };
  std::vector<Copy> taken;
  std::copy_if(copies.begin(), copies.end(), std::back_inserter(taken), is_wanted);
  std::erase_if(copies, is_wanted);
  return taken;
}

}  // namespace thalweg::scheduler
