"""How many floating point operations one row of a step costs, in FP8 equivalents.

Counted are the multiply-adds of the target model: no drafter, padding, expert copies or norms. A multiply-add weighs by
the width of its operands, so that models with different formats compare on one scale. The number is for logging and
utilisation; nothing is scheduled by it.

Two kinds of work: per query row (projections, experts, hyper-connections) and per pair of a query and a cached entry it
looks at (attention scores and values, index scores). Layers before `first_consumer_layer` see every query row. Bounded
replay spares the layers from there on part of the prompt: mode `mask` hides old window entries from them, mode
`compact` also leaves their rows out.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from operator import index
from typing import NamedTuple

from thalweg.scheduler.flops_model import FlopsLayer, FlopsModel

__all__ = ["Flops", "FlopsEstimator", "FlopsLayer", "FlopsModel"]

FP4, FP8, FP16, FP32 = 1, 2, 4, 8
"""Weight of one multiply-add by operand format; TF32 counts as FP32."""


class Flops(NamedTuple):
    """FP8-equivalent operations of one row."""

    attention: int
    total: int
    """Attention included."""


class Term(NamedTuple):
    """A kind of pair: query position p looks at min(cap, (p + shift + 1) // period) entries; cap 0 = no limit."""

    period: int
    cap: int
    shift: int = 0

    def pairs(self, begin: int, end: int) -> int:
        """Pairs of the queries at positions begin..end-1."""
        return self._pairs_before(end + self.shift) - self._pairs_before(begin + self.shift)

    def _pairs_before(self, n: int) -> int:
        saturated = n if self.cap == 0 else min(n, self.period * self.cap)
        entries = saturated // self.period
        uncapped = entries * (saturated + 1) - self.period * entries * (entries + 1) // 2
        return uncapped + (n - saturated) * self.cap


@dataclass(slots=True)
class _Costs:
    """What each unit of work costs, summed over the layers; full = every query row, consumer = those of replay."""

    full_row: int = 0
    """Everything but attention."""
    consumer_row: int = 0
    full_attention_row: int = 0
    consumer_attention_row: int = 0
    full_window_pair: int = 0
    consumer_window_pair: int = 0
    logits_row: int = 0
    full_terms: Counter[Term] = field(default_factory=Counter)
    consumer_terms: Counter[Term] = field(default_factory=Counter)
    index_key_rows: Counter[int] = field(default_factory=Counter)
    """By compress ratio: per compressed entry that is projected to an index key."""


class FlopsEstimator:
    """Estimates rows of one model."""

    def __init__(self, model: FlopsModel) -> None:
        self._model = model
        self._window = Term(1, model.window_size)
        self._costs = _Costs(logits_row=FP16 * model.hidden_size * model.vocab_size)
        self._add_layers_but_attention()
        self._add_hyper_connections()
        for i, layer in enumerate(model.layers):
            self._add_attention(layer, i >= model.first_consumer_layer and model.replay != "off")

    def estimate(
        self,
        query_length: int,
        context_length: int,
        is_prefill: bool,
        full_length: int = -1,
        window_valid_start: int = 0,
    ) -> Flops:
        """Operations of one row: its queries are the last `query_length` positions of `context_length`.

        full_length: length of the whole prompt of a prefill row, -1 = the context. window_valid_start: first position
        whose window state is valid. Raises ValueError for lengths that no row can have.
        """
        # Exact Python integers: a numpy integer would overflow in the products below.
        query_length, context_length = index(query_length), index(context_length)
        full_length, window_valid_start = index(full_length), index(window_valid_start)
        if full_length == -1 or not is_prefill:
            full_length = context_length
        _check_row(query_length, context_length, full_length, window_valid_start)
        start = context_length - query_length
        begin, consumer_valid_start = start, window_valid_start
        if is_prefill and self._model.replay != "off":
            cut = full_length - self._model.replay_keep_tokens
            consumer_valid_start = max(window_valid_start, cut)
            if self._model.replay == "compact":
                begin = min(max(cut, start), context_length - 1)
        costs, consumer_rows = self._costs, context_length - begin
        attention = costs.full_attention_row * query_length + costs.consumer_attention_row * consumer_rows
        for ratio, cost in costs.index_key_rows.items():
            entries = max(1, context_length // ratio - start // ratio) if is_prefill else query_length
            attention += cost * entries
        attention += costs.full_window_pair * self._window_pairs(start, context_length, window_valid_start)
        attention += costs.consumer_window_pair * self._window_pairs(begin, context_length, consumer_valid_start)
        attention += sum(cost * term.pairs(start, context_length) for term, cost in costs.full_terms.items())
        attention += sum(cost * term.pairs(begin, context_length) for term, cost in costs.consumer_terms.items())
        rest = costs.full_row * query_length + costs.consumer_row * consumer_rows
        rest += costs.logits_row * (1 if is_prefill else query_length)
        return Flops(attention, attention + rest)

    def _window_pairs(self, begin: int, end: int, valid_start: int) -> int:
        return self._window.pairs(max(0, begin - valid_start), max(0, end - valid_start))

    def _add_layers_but_attention(self) -> None:
        model, costs = self._model, self._costs
        num_producers = model.first_consumer_layer
        experts = 3 * model.hidden_size * model.expert_size * (model.experts_per_token + model.shared_experts)
        layer = _fp8_or_16(model.fp8_experts) * experts + FP16 * model.hidden_size * model.routed_experts
        costs.full_row += layer * num_producers
        costs.consumer_row += layer * (len(model.layers) - num_producers)
        copies = model.hyper_connections
        engram = _fp8_or_16(model.fp8_engram) * model.engram_width * model.hidden_size * (copies + 1)
        engram += FP32 * copies * model.hidden_size
        costs.full_row += engram * sum(layer < num_producers for layer in model.engram_layers)
        costs.consumer_row += engram * sum(layer >= num_producers for layer in model.engram_layers)

    def _add_hyper_connections(self) -> None:
        model, costs = self._model, self._costs
        copies, shifted = model.hyper_connections, model.shifted_hyper_connections
        num_producers, num_layers = model.first_consumer_layer, len(model.layers)
        if not copies:
            return
        mix = FP32 * copies * model.hidden_size
        before = FP32 * copies * model.hidden_size * copies * (copies + 2) + mix
        after = FP32 * copies * (copies + 1) * model.hidden_size
        sublayer = before + after
        head = mix + (0 if shifted else FP32 * copies * model.hidden_size * copies)
        # The mapping before the first consumer layer is computed while every row is still there.
        boundary = before if model.replay == "compact" and num_producers < num_layers else 0
        costs.full_row += 2 * sublayer * num_producers - (mix if shifted else 0) + boundary
        costs.consumer_row += 2 * sublayer * (num_layers - num_producers) + head - boundary

    def _add_attention(self, layer: FlopsLayer, is_consumer: bool) -> None:
        model, costs = self._model, self._costs
        is_compact = is_consumer and model.replay == "compact"
        row, core = self._attention_row(layer), FP16 * model.num_heads * 2 * model.head_dim
        if is_compact:
            costs.consumer_attention_row += row
        else:
            costs.full_attention_row += row
        if layer.is_kv_source:
            projections = 1 if layer.compress_ratio == 1 else 2
            costs.full_attention_row += FP16 * model.hidden_size * projections * model.head_dim
        if layer.is_index_key_source and layer.runs_indexer:
            costs.index_key_rows[layer.compress_ratio] += FP16 * model.head_dim * layer.index_head_dim
        if layer.has_window and is_consumer:
            costs.consumer_window_pair += core
        elif layer.has_window:
            costs.full_window_pair += core
        if layer.compress_ratio:
            terms = costs.consumer_terms if is_compact else costs.full_terms
            terms[Term(layer.compress_ratio, layer.topk)] += core
            if layer.runs_indexer:
                self._add_index_scores(terms, layer)

    def _attention_row(self, layer: FlopsLayer) -> int:
        model = self._model
        heads, dim = (layer.index_heads, layer.index_head_dim) if layer.runs_indexer else (0, 0)
        projection = _fp8_or_16(model.fp8_attention)
        return (
            projection * model.hidden_size * (model.query_rank + (model.head_dim if layer.has_window else 0))
            + projection * model.query_rank * (model.num_heads * model.head_dim + heads * dim)
            + FP8 * model.num_heads * model.head_dim * model.output_rank
            + projection * model.output_groups * model.output_rank * model.hidden_size
            + FP16 * model.hidden_size * heads
        )

    def _add_index_scores(self, terms: Counter[Term], layer: FlopsLayer) -> None:
        score = (FP4 if self._model.fp4_indexer else FP8) * layer.index_heads * layer.index_head_dim
        ratio, block = layer.compress_ratio, layer.candidate_block_size
        if layer.candidate_blocks:
            terms[Term(ratio * block, layer.candidate_blocks, ratio * (block - 1))] += score * block
        else:
            terms[Term(ratio, 0)] += score


def _check_row(query_length: int, context_length: int, full_length: int, window_valid_start: int) -> None:
    for name, value in (("query_length", query_length), ("context_length", context_length)):
        if not 1 <= value < 1 << 31:
            raise ValueError(f"{name} is {value}; it must be from 1 to {(1 << 31) - 1}")
    if context_length < query_length:
        raise ValueError(f"context_length is {context_length}; it must be at least query_length, {query_length}")
    if not context_length <= full_length < 1 << 31:
        raise ValueError(
            f"full_length is {full_length}; for a prefill row it must be -1, or from {context_length} (context_length) "
            f"to {(1 << 31) - 1}"
        )
    start = context_length - query_length
    if not 0 <= window_valid_start <= start:
        raise ValueError(f"window_valid_start is {window_valid_start}; it must be from 0 to {start}, the first query")


def _fp8_or_16(is_fp8: bool) -> int:
    return FP8 if is_fp8 else FP16
