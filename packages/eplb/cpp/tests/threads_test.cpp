// A plan is made in the background while steps are split, by several threads. For the thread sanitizer.
#include <cstddef>
#include <cstdint>
#include <optional>
#include <thread>
#include <vector>

#include "check.hpp"
#include "thalweg/eplb/search.hpp"
#include "thalweg/eplb/split.hpp"
#include "traffic.hpp"

using namespace thalweg::eplb;

namespace {

constexpr std::size_t num_steps = 30, num_experts = 16, num_slots = 24, num_ranks = 4;

void threads_that_plan_and_split_get_what_one_gets() {
  const SearchProblem problem(skewed_traffic<float>(num_steps, num_experts, 1), num_experts, num_slots, num_ranks);
  const SearchOptions options{.proposals = 300, .seed = 7};
  const Slots plan = search(problem, std::nullopt, options);
  const Splitter splitter(plan.data(), 1, num_slots, num_ranks, num_experts);
  const auto tokens = skewed_traffic<std::int32_t>(1, num_experts, 2);
  std::vector<std::int32_t> shares(num_slots);
  splitter.split(0, 1, tokens.data(), 2, shares.data());

  std::vector<std::thread> threads;
  for (int index = 0; index < 2; ++index) {
    threads.emplace_back([&] { CHECK(search(problem, plan, options) == search(problem, plan, options)); });
    threads.emplace_back([&] { CHECK(search(problem, std::nullopt, options) == plan); });
    threads.emplace_back([&] {
      std::vector<std::int32_t> mine(num_slots);
      for (int step = 0; step < 200; ++step) {
        splitter.split(0, 1, tokens.data(), 2, mine.data());
        CHECK(mine == shares);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace

int main() { threads_that_plan_and_split_get_what_one_gets(); }
