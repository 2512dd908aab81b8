#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace thalweg::eplb {

// Splits the tokens of a step over the copies of each expert so that the most loaded rank gets as few as possible.
class Splitter {
 public:
  // logical_of_physical: row-major [layers, slots] expert in each slot, experts in 0..experts-1, every one present.
  Splitter(const std::int32_t* logical_of_physical, std::size_t layers, std::size_t slots, std::size_t ranks,
           std::size_t experts);

  std::size_t layers() const { return layers_.size(); }
  std::size_t slots() const { return num_slots_; }
  std::size_t experts() const { return num_experts_; }

  // Splits layers first..first+count-1. tokens: [count, experts], none negative, and no layer's sum above int32.
  // shares: [count, slots], every element is written.
  void split(std::size_t first, std::size_t count, const std::int32_t* tokens, int sweeps, std::int32_t* shares) const;

 private:
  // A slot that takes tokens: the first one with its expert on its rank.
  struct Place {
    std::int32_t expert;
    std::int32_t slot;
    std::int32_t rank;
  };

  struct Layer {
    std::vector<Place> alone;            // of experts on one rank
    std::vector<Place> shared;           // of experts on several ranks: by expert, then by rank
    std::vector<std::size_t> first = {0};  // where each of those experts begins in `shared`, and the end
  };

  // A rank's load in the upper half and its place among the copies in the lower one, so that they sort in one comparison.
  using Level = std::uint64_t;

  void split_layer(const Layer& layer, const std::int32_t* tokens, int sweeps, std::int32_t* shares,
                   std::vector<std::int32_t>& loads, std::vector<Level>& order) const;
  static void sort(Level* begin, Level* end);
  static void pour(std::int32_t tokens, const Place* places, std::size_t count, std::int32_t* shares,
                   std::int32_t* loads, Level* order);

  std::size_t num_slots_;
  std::size_t num_ranks_;
  std::size_t num_experts_;
  std::vector<Layer> layers_;
};

}  // namespace thalweg::eplb
