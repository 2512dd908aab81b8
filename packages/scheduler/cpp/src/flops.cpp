#include "thalweg/scheduler/flops.hpp"

#include <algorithm>
#include <bit>
#include <limits>
#include <stdexcept>
#include <string>

namespace thalweg::scheduler {
namespace {

// Weight of one multiply-add by operand format; TF32 counts as FP32.
constexpr Int128 fp4 = 1, fp8 = 2, fp16 = 4, fp32 = 8;

constexpr Int128 fp8_or_16(bool is_fp8) { return is_fp8 ? fp8 : fp16; }

constexpr std::int64_t longest = std::numeric_limits<std::int32_t>::max();

}  // namespace

void check_flops_row(const FlopsRow& row) {
  const auto length = [](const char* name, std::int64_t value) {
    if (value < 1 || value > longest)
      throw std::invalid_argument(std::string(name) + " is " + std::to_string(value) + "; it must be from 1 to " +
                                  std::to_string(longest));
  };
  length("query_length", row.query_length);
  length("context_length", row.context_length);
  if (row.context_length < row.query_length)
    throw std::invalid_argument("context_length is " + std::to_string(row.context_length) +
                                "; it must be at least query_length, " + std::to_string(row.query_length));
  const bool has_full_length = row.is_prefill && row.full_length != -1;
  if (has_full_length && (row.full_length < row.context_length || row.full_length > longest))
    throw std::invalid_argument("full_length is " + std::to_string(row.full_length) +
                                "; for a prefill row it must be -1, or from " + std::to_string(row.context_length) +
                                " (context_length) to " + std::to_string(longest));
  const std::int64_t start = row.context_length - row.query_length;
  if (row.window_valid_start < 0 || row.window_valid_start > start)
    throw std::invalid_argument("window_valid_start is " + std::to_string(row.window_valid_start) +
                                "; it must be from 0 to " + std::to_string(start) + ", the first query");
}

FlopsEstimator::Term::Term(std::int64_t period, std::int64_t cap, std::int64_t shift, Int128 cost)
    : period(period),
      cap(cap),
      shift(shift),
      cost(cost),
      saturation(cap == 0 ? std::numeric_limits<std::int64_t>::max() : period * cap),
      period_bits(std::has_single_bit(static_cast<std::uint64_t>(period))
                      ? std::countr_zero(static_cast<std::uint64_t>(period))
                      : -1) {}

// Entries are counted up to the query before `n`; `divide` gives how many whole periods a count of positions has.
template <class Divide>
std::int64_t FlopsEstimator::Term::pairs_before(std::int64_t n, Divide divide) const {
  const std::int64_t rising = std::min(n, saturation);
  const std::int64_t entries = divide(rising);
  return entries * (rising + 1) - period * ((entries * (entries + 1)) >> 1) + (n - rising) * cap;
}

template <class Divide>
std::int64_t FlopsEstimator::Term::pairs(std::int64_t begin, std::int64_t end, Divide divide) const {
  if (begin + shift >= saturation) return (end - begin) * cap;
  return pairs_before(end + shift, divide) - pairs_before(begin + shift, divide);
}

// Calls `work` with the cheapest way to divide by the period.
template <class Work>
auto FlopsEstimator::Term::with_divider(Work work) const {
  if (period_bits == 0) return work([](std::int64_t n) { return n; });
  if (period_bits > 0) return work([bits = period_bits](std::int64_t n) { return n >> bits; });
  return work([by = period](std::int64_t n) { return n / by; });
}

std::int64_t FlopsEstimator::Term::pairs(std::int64_t begin, std::int64_t end) const {
  return with_divider([&](auto divide) { return pairs(begin, end, divide); });
}

std::int64_t FlopsEstimator::Term::decode_pairs(std::span<const std::int32_t> query_lengths,
                                                std::span<const std::int32_t> context_lengths) const {
  return with_divider([&](auto divide) {
    std::int64_t sum = 0;
    for (std::size_t row = 0; row < query_lengths.size(); ++row)
      sum += pairs(context_lengths[row] - query_lengths[row], context_lengths[row], divide);
    return sum;
  });
}

FlopsEstimator::FlopsEstimator(const FlopsModel& model)
    : replay_(model.replay),
      keep_tokens_(model.replay_keep_tokens),
      window_size_(model.window_size),
      logits_row_(fp16 * model.hidden_size * model.vocab_size) {
  add_layers_but_attention(model);
  add_hyper_connections(model);
  std::int64_t index = 0;
  for (const FlopsLayer& layer : model.layers)
    add_attention(model, layer, index++ >= model.first_consumer_layer && replay_ != ReplayMode::off);
  prepare_decode();
}

Flops FlopsEstimator::estimate(const FlopsRow& row) const {
  check_flops_row(row);
  return estimate_unchecked(row);
}

Flops FlopsEstimator::estimate_unchecked(const FlopsRow& row) const {
  const std::int64_t end = row.context_length, start = end - row.query_length;
  std::int64_t begin = start, consumer_valid_start = row.window_valid_start;
  if (row.is_prefill && replay_ != ReplayMode::off) {
    const std::int64_t cut = (row.full_length == -1 ? end : row.full_length) - keep_tokens_;
    consumer_valid_start = std::max(consumer_valid_start, cut);
    if (replay_ == ReplayMode::compact) begin = std::min(std::max(cut, start), end - 1);
  }
  const std::int64_t consumer_rows = end - begin;
  Int128 attention = full_.attention_row * row.query_length + consumer_.attention_row * consumer_rows;
  for (const IndexKeys& keys : index_keys_) {
    const std::int64_t entries =
        row.is_prefill ? std::max<std::int64_t>(1, end / keys.ratio - start / keys.ratio) : row.query_length;
    attention += keys.cost * entries;
  }
  attention += pair_cost(full_, start, end, row.window_valid_start);
  attention += pair_cost(consumer_, begin, end, consumer_valid_start);
  const Int128 rest = full_.row * row.query_length + consumer_.row * consumer_rows +
                      logits_row_ * (row.is_prefill ? 1 : row.query_length);
  return {attention, attention + rest};
}

Flops FlopsEstimator::estimate_decode(std::span<const std::int32_t> query_lengths,
                                      std::span<const std::int32_t> context_lengths) const {
  std::int64_t num_queries = 0;
  for (const std::int32_t length : query_lengths) num_queries += length;
  if (num_queries > longest) {  // beyond this many, the pairs of a term could exceed 64 bits
    const std::size_t half = query_lengths.size() / 2;
    Flops sum = estimate_decode(query_lengths.first(half), context_lengths.first(half));
    return sum += estimate_decode(query_lengths.subspan(half), context_lengths.subspan(half));
  }
  Flops sum{decode_.attention_row * num_queries, 0};
  for (const Term& term : decode_.terms) sum.attention += term.cost * term.decode_pairs(query_lengths, context_lengths);
  sum.total = sum.attention + decode_.row * num_queries;
  return sum;
}

Int128 FlopsEstimator::pair_cost(const Costs& costs, std::int64_t begin, std::int64_t end,
                                 std::int64_t valid_start) const {
  const Term window(1, window_size_, 0, costs.window_pair);
  Int128 cost = window.cost * window.pairs(std::max<std::int64_t>(0, begin - valid_start),
                                           std::max<std::int64_t>(0, end - valid_start));
  for (const Term& term : costs.terms) cost += term.cost * term.pairs(begin, end);
  return cost;
}

void FlopsEstimator::add_layers_but_attention(const FlopsModel& model) {
  const auto num_layers = static_cast<std::int64_t>(model.layers.size());
  const std::int64_t num_producers = model.first_consumer_layer;
  const Int128 hidden = model.hidden_size;
  const Int128 experts = 3 * hidden * model.expert_size * (model.experts_per_token + model.shared_experts);
  const Int128 layer = fp8_or_16(model.fp8_experts) * experts + fp16 * hidden * model.routed_experts;
  full_.row += layer * num_producers;
  consumer_.row += layer * (num_layers - num_producers);
  const Int128 copies = model.hyper_connections;
  const Int128 engram =
      fp8_or_16(model.fp8_engram) * model.engram_width * hidden * (copies + 1) + fp32 * copies * hidden;
  for (const std::int64_t index : model.engram_layers) (index < num_producers ? full_ : consumer_).row += engram;
}

void FlopsEstimator::add_hyper_connections(const FlopsModel& model) {
  if (model.hyper_connections == 0) return;
  const auto num_layers = static_cast<std::int64_t>(model.layers.size());
  const std::int64_t num_producers = model.first_consumer_layer;
  const Int128 copies = model.hyper_connections, hidden = model.hidden_size;
  const bool shifted = model.shifted_hyper_connections;
  const Int128 mix = fp32 * copies * hidden;
  const Int128 before = fp32 * copies * hidden * copies * (copies + 2) + mix;
  const Int128 sublayer = before + fp32 * copies * (copies + 1) * hidden;
  const Int128 head = mix + (shifted ? 0 : fp32 * copies * hidden * copies);
  // The mapping before the first consumer layer is computed while every row is still there.
  const Int128 boundary = model.replay == ReplayMode::compact && num_producers < num_layers ? before : 0;
  full_.row += 2 * sublayer * num_producers - (shifted ? mix : 0) + boundary;
  consumer_.row += 2 * sublayer * (num_layers - num_producers) + head - boundary;
}

void FlopsEstimator::add_attention(const FlopsModel& model, const FlopsLayer& layer, bool is_consumer) {
  const Int128 hidden = model.hidden_size, dim = model.head_dim, heads = model.num_heads;
  const Int128 index_heads = layer.runs_indexer() ? layer.index_heads : 0;
  const Int128 index_dim = layer.runs_indexer() ? layer.index_head_dim : 0;
  const Int128 projection = fp8_or_16(model.fp8_attention), core = fp16 * heads * 2 * dim;
  Costs& costs = is_consumer && model.replay == ReplayMode::compact ? consumer_ : full_;
  costs.attention_row += projection * hidden * (model.query_rank + (layer.has_window ? dim : 0)) +
                         projection * model.query_rank * (heads * dim + index_heads * index_dim) +
                         fp8 * heads * dim * model.output_rank +
                         projection * model.output_groups * model.output_rank * hidden + fp16 * hidden * index_heads;
  if (layer.is_kv_source) full_.attention_row += fp16 * hidden * (layer.compress_ratio == 1 ? 1 : 2) * dim;
  if (layer.has_window) (is_consumer ? consumer_ : full_).window_pair += core;
  if (layer.compress_ratio == 0) return;
  add_term(costs.terms, Term(layer.compress_ratio, layer.topk, 0, core));
  if (!layer.runs_indexer()) return;
  const Int128 score = (model.fp4_indexer ? fp4 : fp8) * index_heads * index_dim;
  const std::int64_t ratio = layer.compress_ratio, block = layer.candidate_block_size;
  if (layer.candidate_blocks != 0)
    add_term(costs.terms, Term(ratio * block, layer.candidate_blocks, ratio * (block - 1), score * block));
  else
    add_term(costs.terms, Term(ratio, 0, 0, score));
  if (!layer.is_index_key_source) return;
  const auto same = std::find_if(index_keys_.begin(), index_keys_.end(),
                                 [&](const IndexKeys& keys) { return keys.ratio == layer.compress_ratio; });
  IndexKeys& keys = same == index_keys_.end() ? index_keys_.emplace_back(IndexKeys{layer.compress_ratio}) : *same;
  keys.cost += fp16 * dim * index_dim;
}

void FlopsEstimator::prepare_decode() {
  decode_.row = full_.row + consumer_.row + logits_row_;
  decode_.attention_row = full_.attention_row + consumer_.attention_row;
  for (const IndexKeys& keys : index_keys_) decode_.attention_row += keys.cost;
  for (const Costs* costs : {&full_, &consumer_}) {
    add_term(decode_.terms, Term(1, window_size_, 0, costs->window_pair));
    for (const Term& term : costs->terms) add_term(decode_.terms, term);
  }
}

void FlopsEstimator::add_term(std::vector<Term>& terms, const Term& term) {
  const auto is_same = [&](const Term& other) {
    return other.period == term.period && other.cap == term.cap && other.shift == term.shift;
  };
  const auto same = std::find_if(terms.begin(), terms.end(), is_same);
  if (same == terms.end())
    terms.push_back(term);
  else
    same->cost += term.cost;
}

}  // namespace thalweg::scheduler
