#include "thalweg/eplb/search_screen.hpp"

#include <algorithm>
#include <array>

#include "thalweg/eplb/lanes.hpp"

namespace thalweg::eplb {
namespace {

// The score of what is no swap; also the tokens of what is no slot, which no rank can take.
constexpr float never = 1e30F;
// Of each rank, the steps in which it weighs most. More make the choice better and dearer.
constexpr std::size_t most_steps = 4;

}  // namespace

SwapScreen::View::View(const SearchProblem& problem, std::size_t width)
    : step(problem.num_ranks),
      share(problem.num_ranks * width, never),
      given(problem.num_ranks),
      load_i(problem.num_ranks),
      power_i(problem.num_ranks),
      load_j(problem.num_ranks),
      power_j(problem.num_ranks),
      weight(problem.num_ranks) {}

ScreenRows SwapScreen::View::rows() const {
  return {share.data(), given.data(), load_i.data(), power_i.data(), load_j.data(), power_j.data(), weight.data()};
}

SwapScreen::SwapScreen(SearchState& state)
    : state_(state),
      problem_(state.problem()),
      steps_of_rank_(std::min(most_steps, problem_.num_steps)),
      width_((problem_.slots_per_rank + lane_count - 1) / lane_count * lane_count),
      views_(2 * steps_of_rank_ + 1, View(problem_, width_)),
      inverse_copies_(problem_.num_experts),
      step_row_(problem_.num_experts),
      score_(problem_.num_ranks * width_) {
  const Copies copies = count_copies(problem_, state.slots());
  for (std::size_t e = 0; e < copies.size(); ++e) inverse_copies_[e] = 1.0F / static_cast<float>(copies[e]);
  for (const View& view : views_) rows_.push_back(view.rows());
  follow_all();
}

std::size_t SwapScreen::open(std::size_t step) {
  View& first = views_[steps_of_rank_];
  fill(first, step);
  rank_ = static_cast<std::size_t>(std::max_element(first.load_j.begin(), first.load_j.end()) - first.load_j.begin());
  std::array<std::size_t, most_steps> worst{};
  state_.find_worst_steps(rank_, worst.data(), steps_of_rank_);
  open_views_ = steps_of_rank_ + 1;
  for (std::size_t at = 0; at < steps_of_rank_; ++at)
    if (worst[at] != step) fill(views_[open_views_++], worst[at]);
  look_from_rank();
  return rank_;
}

void SwapScreen::score(std::size_t slot_i) {
  for (std::size_t at = 0; at < open_views_; ++at) {
    View& view = views_[at];
    for (std::size_t rank = 0; rank < problem_.num_ranks; ++rank)
      view.given[rank] = state_.share_at(slot_i, view.step[rank]) * state_.inverse_peak(view.step[rank]);
  }
  screen_swaps(rows_.data(), open_views_, problem_.num_ranks, width_, score_.data());
  std::fill_n(score_.begin() + static_cast<std::ptrdiff_t>(rank_ * width_), width_, never);
}

std::size_t SwapScreen::take_best() {
  const std::size_t place = least_place(score_.data(), score_.size());
  if (!(score_[place] < 0.0F)) return problem_.num_slots;
  score_[place] = never;
  return place / width_ * problem_.slots_per_rank + place % width_;
}

void SwapScreen::follow(const SearchState::Swap& swap) {
  for (const std::size_t slot : {swap.slot_i, swap.slot_j}) {
    find_own_steps(state_.rank_of(slot));
    for (std::size_t at = steps_of_rank_; at < open_views_; ++at) {
      set_load(views_[at], state_.rank_of(slot));
      set_share(views_[at], slot);
    }
  }
  look_from_rank();
}

void SwapScreen::follow_all() {
  for (std::size_t rank = 0; rank < problem_.num_ranks; ++rank) find_own_steps(rank);
}

void SwapScreen::find_own_steps(std::size_t rank) {
  std::array<std::size_t, most_steps> worst{};
  state_.find_worst_steps(rank, worst.data(), steps_of_rank_);
  for (std::size_t at = 0; at < steps_of_rank_; ++at) {
    set_step(views_[at], rank, worst[at]);
    for (std::size_t slot = rank * problem_.slots_per_rank; slot < (rank + 1) * problem_.slots_per_rank; ++slot)
      set_share(views_[at], slot);
  }
}

// The same step of all ranks. A row of that step holds the experts one after the other, which the shares do not.
void SwapScreen::fill(View& view, std::size_t step) {
  scale_row(problem_.by_step.data() + step * problem_.num_experts, inverse_copies_.data(), state_.inverse_peak(step),
            step_row_.data(), problem_.num_experts);
  const std::int32_t* expert = state_.slots().data();
  for (std::size_t rank = 0; rank < problem_.num_ranks; ++rank) {
    set_step(view, rank, step);
    float* share = view.share.data() + rank * width_;
    for (std::size_t slot = 0; slot < problem_.slots_per_rank; ++slot)
      share[slot] = step_row_[static_cast<std::size_t>(*expert++)];
  }
}

void SwapScreen::look_from_rank() {
  for (std::size_t at = 0; at < open_views_; ++at) {
    View& view = views_[at];
    for (std::size_t rank = 0; rank < problem_.num_ranks; ++rank) {
      view.load_i[rank] = state_.load_at(rank_, view.step[rank]);
      view.power_i[rank] = state_.power_at(rank_, view.step[rank]);
    }
  }
}

void SwapScreen::set_step(View& view, std::size_t rank, std::size_t step) const {
  view.step[rank] = step;
  view.weight[rank] = state_.weight(step);
  set_load(view, rank);
}

void SwapScreen::set_load(View& view, std::size_t rank) const {
  view.load_j[rank] = state_.load_at(rank, view.step[rank]);
  view.power_j[rank] = state_.power_at(rank, view.step[rank]);
}

void SwapScreen::set_share(View& view, std::size_t slot) const {
  const std::size_t step = view.step[state_.rank_of(slot)];
  view.share[place_of(slot)] = state_.share_at(slot, step) * state_.inverse_peak(step);
}

std::size_t SwapScreen::place_of(std::size_t slot) const {
  return slot / problem_.slots_per_rank * width_ + slot % problem_.slots_per_rank;
}

}  // namespace thalweg::eplb
