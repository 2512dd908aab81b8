#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

namespace thalweg::eplb {

// SplitMix64.
class Generator {
 public:
  explicit Generator(std::uint64_t seed) : state_(seed) {}

  std::uint64_t next() {
    std::uint64_t bits = state_ += 0x9E3779B97F4A7C15;
    bits = (bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9;
    bits = (bits ^ (bits >> 27)) * 0x94D049BB133111EB;
    return bits ^ (bits >> 31);
  }

  std::size_t below(std::size_t limit) { return static_cast<std::size_t>(((next() >> 32) * limit) >> 32); }

  // -log2 of a uniform number, with straight lines between powers of two: the same everywhere, which a logarithm is
  // not.
  float exponential() {
    const std::uint64_t bits = next();
    const int zeros = std::countl_zero(bits | 1);
    const auto fraction = static_cast<float>(bits << zeros << 1 >> 40) * 0x1p-24F;
    return static_cast<float>(zeros + 1) - fraction;
  }

 private:
  std::uint64_t state_;
};

}  // namespace thalweg::eplb
