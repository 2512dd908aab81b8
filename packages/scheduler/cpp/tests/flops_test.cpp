#include "thalweg/scheduler/flops.hpp"

#include <algorithm>
#include <random>
#include <stdexcept>
#include <vector>

#include "check.hpp"

using namespace thalweg::scheduler;

namespace {

// Attention costs of a tiny model with every kind of layer; widths are small primes, so that a swapped one shows.
FlopsModel every_kind() {
  FlopsModel model{.hidden_size = 3, .vocab_size = 5, .num_heads = 2, .head_dim = 7, .window_size = 4};
  model.layers = {
      {},
      {.compress_ratio = 2, .topk = 3, .index_heads = 2, .index_head_dim = 5, .is_kv_source = true,
       .is_index_source = true, .is_index_key_source = true},
      {.compress_ratio = 3, .has_window = false, .topk = 2, .is_kv_source = true},
      {.compress_ratio = 1, .topk = 3, .index_heads = 2, .index_head_dim = 5, .is_index_source = true,
       .candidate_blocks = 2, .candidate_block_size = 4},
  };
  model.first_consumer_layer = 2;
  return model;
}

std::int64_t pairs_one_by_one(std::int64_t begin, std::int64_t end, std::int64_t window) {
  std::int64_t pairs = 0;
  for (std::int64_t position = begin; position < end; ++position) pairs += std::min(window, position + 1);
  return pairs;
}

void window_pairs_are_those_counted_one_by_one() {
  FlopsModel model{.window_size = 4};
  model.layers = {{}};
  model.first_consumer_layer = 1;
  const FlopsEstimator estimator(model);
  const auto attention = [&](std::int64_t q, std::int64_t k) { return estimator.estimate({q, k}).attention; };
  const Int128 row = attention(1, 1) - 8;  // one pair costs 4 * 1 head * 2 * 1
  for (std::int64_t k = 1; k < 12; ++k)
    for (std::int64_t q = 1; q <= k; ++q) CHECK(attention(q, k) == row * q + 8 * pairs_one_by_one(k - q, k, 4));
}

void chunks_of_a_prompt_cost_as_much_as_the_whole() {
  FlopsModel model = every_kind();
  model.layers[1].is_index_key_source = false;  // a chunk projects at least one index key
  const FlopsEstimator estimator(model);
  const Flops whole = estimator.estimate({50, 50, true});
  const Flops first = estimator.estimate({17, 17, true}), second = estimator.estimate({33, 50, true});
  CHECK(whole.attention == first.attention + second.attention);
}

void decode_rows_together_cost_their_sum() {
  for (const ReplayMode mode : {ReplayMode::off, ReplayMode::mask, ReplayMode::compact}) {
    FlopsModel model = every_kind();
    model.replay = mode;
    model.replay_keep_tokens = 9;
    model.hyper_connections = 4;
    const FlopsEstimator estimator(model);
    std::mt19937 random(3);
    std::vector<std::int32_t> queries, contexts;
    Flops sum;
    for (int row = 0; row < 200; ++row) {
      queries.push_back(1 + static_cast<std::int32_t>(random() % 6));
      contexts.push_back(queries.back() + static_cast<std::int32_t>(random() % (row < 100 ? 20U : 2000000000U)));
      sum += estimator.estimate({queries.back(), contexts.back()});
    }
    const Flops together = estimator.estimate_decode(queries, contexts);
    CHECK(together.attention == sum.attention && together.total == sum.total);
  }
}

void the_longest_row_of_a_large_model_does_not_overflow() {
  constexpr std::int64_t size = 1 << 20;
  FlopsModel model{.hidden_size = size, .vocab_size = size, .num_heads = size, .head_dim = size, .query_rank = size,
                   .output_rank = size, .output_groups = size, .window_size = size, .expert_size = size,
                   .experts_per_token = size, .shared_experts = size, .routed_experts = size};
  model.layers.assign(1024, {.compress_ratio = size, .topk = size, .index_heads = size, .index_head_dim = size,
                             .is_kv_source = true, .is_index_source = true, .is_index_key_source = true,
                             .candidate_blocks = size, .candidate_block_size = size});
  model.first_consumer_layer = 512;
  model.hyper_connections = size;
  const FlopsEstimator estimator(model);
  constexpr std::int64_t longest = (std::int64_t{1} << 31) - 1;
  const Flops all = estimator.estimate({longest, longest, true});
  CHECK(all.attention > 0 && all.total > all.attention);
  const Flops row = estimator.estimate({longest, longest});
  CHECK(row.total > all.attention);
  const std::vector<std::int32_t> lengths(3, static_cast<std::int32_t>(longest));
  CHECK(estimator.estimate_decode(lengths, lengths).total == 3 * row.total);
}

void lengths_that_no_row_has_are_refused() {
  const FlopsEstimator estimator(every_kind());
  const auto refuses = [&](FlopsRow row, const char* message) {
    check_throws<std::invalid_argument>([&] { estimator.estimate(row); }, message);
  };
  refuses({0, 5}, "query_length is 0");
  refuses({-1, 5}, "query_length is -1");
  refuses({6, 5}, "context_length is 5; it must be at least query_length, 6");
  refuses({6, std::int64_t{1} << 31}, "context_length is 2147483648");
  refuses({2, 5, true, 4}, "full_length is 4");
  refuses({2, 5, true, 5, 4}, "window_valid_start is 4; it must be from 0 to 3");
  refuses({2, 5, false, -1, -1}, "window_valid_start is -1");
  estimator.estimate({2, 5, false, 4});  // a decode row has no full length
}

}  // namespace

int main() {
  window_pairs_are_those_counted_one_by_one();
  chunks_of_a_prompt_cost_as_much_as_the_whole();
  decode_rows_together_cost_their_sum();
  the_longest_row_of_a_large_model_does_not_overflow();
  lengths_that_no_row_has_are_refused();
}
