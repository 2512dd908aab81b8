// Splits of every kind of layer, with tokens up to what int32 holds: for the sanitizers of memory and arithmetic.
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "check.hpp"
#include "thalweg/eplb/split.hpp"
#include "traffic.hpp"

using namespace thalweg::eplb;

namespace {

constexpr std::size_t num_layers = 3, num_slots = 12, num_ranks = 4, num_experts = 6;

// Layers with two copies of each expert, with an expert everywhere, and with an expert twice on one rank.
const std::vector<std::int32_t> placements = {
    0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 5,  //
    0, 1, 2, 0, 3, 4, 0, 5, 1, 0, 2, 3,  //
    0, 0, 1, 2, 3, 4, 5, 0, 1, 2, 2, 2,
};

void check_sums(const std::vector<std::int32_t>& tokens, const std::vector<std::int32_t>& shares) {
  std::vector<std::int64_t> sums(num_layers * num_experts);
  for (std::size_t slot = 0; slot < shares.size(); ++slot) {
    CHECK(shares[slot] >= 0);
    sums[slot / num_slots * num_experts + static_cast<std::size_t>(placements[slot])] += shares[slot];
  }
  for (std::size_t place = 0; place < sums.size(); ++place) CHECK(sums[place] == tokens[place]);
}

void the_shares_of_an_expert_add_up_to_its_tokens() {
  const Splitter splitter(placements.data(), num_layers, num_slots, num_ranks, num_experts);
  std::vector<std::int32_t> shares(num_layers * num_slots, -1);
  for (std::uint32_t seed = 0; seed < 50; ++seed) {
    const auto tokens = skewed_traffic<std::int32_t>(num_layers, num_experts, seed);
    for (const int sweeps : {0, 1, 4}) {
      splitter.split(0, num_layers, tokens.data(), sweeps, shares.data());
      check_sums(tokens, shares);
    }
  }
}

void as_many_tokens_as_int32_holds_do_not_overflow() {
  const Splitter splitter(placements.data(), num_layers, num_slots, num_ranks, num_experts);
  std::vector<std::int32_t> tokens(num_layers * num_experts), shares(num_layers * num_slots, -1);
  for (std::size_t expert = 0; expert < num_experts; ++expert) {
    tokens.assign(tokens.size(), 0);
    for (std::size_t layer = 0; layer < num_layers; ++layer)
      tokens[layer * num_experts + expert] = std::numeric_limits<std::int32_t>::max();
    splitter.split(0, num_layers, tokens.data(), 2, shares.data());
    check_sums(tokens, shares);
  }
}

}  // namespace

int main() {
  the_shares_of_an_expert_add_up_to_its_tokens();
  as_many_tokens_as_int32_holds_do_not_overflow();
}
