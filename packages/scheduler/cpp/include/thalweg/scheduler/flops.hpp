#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace thalweg::scheduler {

__extension__ typedef __int128 Int128;

enum class ReplayMode { off, mask, compact };

// What one layer's attention computes; the fields of FlopsLayer in flops_model.py, which checks and explains them.
struct FlopsLayer {
  std::int64_t compress_ratio = 0;
  bool has_window = true;
  std::int64_t topk = 0;
  std::int64_t index_heads = 0;
  std::int64_t index_head_dim = 0;
  bool is_kv_source = false;
  bool is_index_source = false;
  bool is_index_key_source = false;
  std::int64_t candidate_blocks = 0;
  std::int64_t candidate_block_size = 0;

  bool runs_indexer() const { return topk > 0 && is_index_source; }
};

// The fields of FlopsModel in flops_model.py.
struct FlopsModel {
  std::int64_t hidden_size = 1, vocab_size = 1, num_heads = 1, head_dim = 1, query_rank = 1, output_rank = 1;
  std::int64_t output_groups = 1, window_size = 1, expert_size = 1, experts_per_token = 1, shared_experts = 0;
  std::int64_t routed_experts = 1;
  std::vector<FlopsLayer> layers = {};
  std::int64_t first_consumer_layer = 0;
  std::int64_t hyper_connections = 0;
  bool shifted_hyper_connections = true;
  std::vector<std::int64_t> engram_layers = {};
  std::int64_t engram_width = 0;
  bool fp8_attention = true, fp8_experts = true, fp8_engram = true, fp4_indexer = true;
  ReplayMode replay = ReplayMode::off;
  std::int64_t replay_keep_tokens = 0;
};

// FP8-equivalent operations. 128 bits hold every sum of a model within the bounds of flops_model.py.
struct Flops {
  Int128 attention = 0;
  Int128 total = 0;  // attention included

  Flops& operator+=(const Flops& other) {
    attention += other.attention;
    total += other.total;
    return *this;
  }
};

struct FlopsRow {
  std::int64_t query_length = 0;
  std::int64_t context_length = 0;
  bool is_prefill = false;
  std::int64_t full_length = -1;  // of the whole prompt; -1 = the context
  std::int64_t window_valid_start = 0;
};

// Throws std::invalid_argument for lengths that no row can have.
void check_flops_row(const FlopsRow& row);

// Estimates rows of one model. flops.py says what is counted; here everything that depends on the model alone is summed
// up front.
class FlopsEstimator {
 public:
  explicit FlopsEstimator(const FlopsModel& model);

  // Checks the row first.
  Flops estimate(const FlopsRow& row) const;

  // The same for lengths known to be good.
  Flops estimate_unchecked(const FlopsRow& row) const;

  // Sum over decode rows whose windows are valid from position 0; lengths known to be good.
  Flops estimate_decode(std::span<const std::int32_t> query_lengths,
                        std::span<const std::int32_t> context_lengths) const;

 private:
  // A kind of pair of query and cached entry: the query at position p sees min(cap, (p + shift + 1) / period) entries.
  struct Term {
    std::int64_t period;
    std::int64_t cap;  // 0 = no limit
    std::int64_t shift;
    Int128 cost;              // per pair
    std::int64_t saturation;  // a query at p sees cap entries from p + shift + 1 = saturation on
    int period_bits;          // log2 of the period, -1 unless it is a power of two

    Term(std::int64_t period, std::int64_t cap, std::int64_t shift, Int128 cost);
    std::int64_t pairs(std::int64_t begin, std::int64_t end) const;
    std::int64_t decode_pairs(std::span<const std::int32_t> query_lengths,
                              std::span<const std::int32_t> context_lengths) const;

   private:
    template <class Divide>
    std::int64_t pairs_before(std::int64_t n, Divide divide) const;
    template <class Divide>
    std::int64_t pairs(std::int64_t begin, std::int64_t end, Divide divide) const;
    template <class Work>
    auto with_divider(Work work) const;
  };

  struct IndexKeys {
    std::int64_t ratio;
    Int128 cost = 0;  // per compressed entry
  };

  // Costs of one kind of query rows: all of them, or those that the consumer layers compute under replay.
  struct Costs {
    Int128 row = 0;  // everything but attention
    Int128 attention_row = 0;
    Int128 window_pair = 0;
    std::vector<Term> terms;
  };

  void add_layers_but_attention(const FlopsModel& model);
  void add_hyper_connections(const FlopsModel& model);
  void add_attention(const FlopsModel& model, const FlopsLayer& layer, bool is_consumer);
  void prepare_decode();
  Int128 pair_cost(const Costs& costs, std::int64_t begin, std::int64_t end, std::int64_t valid_start) const;
  static void add_term(std::vector<Term>& terms, const Term& term);

  ReplayMode replay_;
  std::int64_t keep_tokens_;
  std::int64_t window_size_;
  Int128 logits_row_;
  Costs full_;
  Costs consumer_;
  Costs decode_;  // both together; its window is one of the terms
  std::vector<IndexKeys> index_keys_;
};

}  // namespace thalweg::scheduler
