#pragma once

#include <cstddef>
#include <vector>

#include "thalweg/eplb/search_kernels.hpp"
#include "thalweg/eplb/search_problem.hpp"
#include "thalweg/eplb/search_state.hpp"

namespace thalweg::eplb {

// Finds the swaps of a slot that are worth a look over all steps: scores those with every other slot over the few steps
// that decide most, which are the ones in which the two ranks weigh most in the objective.
class SwapScreen {
 public:
  explicit SwapScreen(SearchState& state);

  // Turn to a step and to the most loaded rank in it, whose slots the swaps give away. Returns that rank.
  std::size_t open(std::size_t step);
  // Score the swaps of a slot of that rank.
  void score(std::size_t slot_i);
  // The other slot of the best swap not yet taken; num_slots if none of the others improves.
  std::size_t take_best();
  // Tell of a swap that was applied, or of more than that.
  void follow(const SearchState::Swap& swap);
  void follow_all();

 private:
  // What a swap meets at one step of each rank j, the same of all ranks or its own.
  struct View {
    View(const SearchProblem& problem, std::size_t width);
    ScreenRows rows() const;

    std::vector<std::size_t> step;  // [num_ranks]
    std::vector<float> share;       // [num_ranks, width] of the copies on j, in parts of the step's peak
    std::vector<float> given;       // [num_ranks] of the copy that rank i gives away
    std::vector<float> load_i, power_i, load_j, power_j, weight;  // [num_ranks]
  };

  void set_step(View& view, std::size_t rank, std::size_t step) const;
  void set_load(View& view, std::size_t rank) const;
  void set_share(View& view, std::size_t slot) const;
  void fill(View& view, std::size_t step);
  void find_own_steps(std::size_t rank);
  void look_from_rank();
  std::size_t place_of(std::size_t slot) const;

  SearchState& state_;
  const SearchProblem& problem_;
  std::size_t steps_of_rank_;  // how many of a rank's steps are looked at
  std::size_t width_;          // slots of a rank in the views, padded to whole lanes
  std::size_t rank_ = 0;
  std::size_t open_views_ = 0;
  std::vector<View> views_;    // first one for each of the steps of rank j, then those of the step and of rank i
  std::vector<ScreenRows> rows_;
  std::vector<float> inverse_copies_, step_row_;  // [num_experts]
  std::vector<float> score_;                      // [num_ranks, width]
};

}  // namespace thalweg::eplb
