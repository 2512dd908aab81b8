"""What every op of a step costs at least: the bytes that it must move and the operations of its products.

Bytes are those of all arguments and results, each once, but for ops that read a part of an argument: of weights those
of touched experts, of a cache the records that are named, of scores the visible ones.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from cuda_timing import TENSOR_TFLOPS

from thalweg.kernels import BoundOps


class Call(NamedTuple):
    """An op as a model called it."""

    op: str
    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    result: Any

    def again(self) -> object:
        """The same call once more."""
        return self.function(*self.args, **self.kwargs)


class Cost(NamedTuple):
    """Bytes moved and operations of products, at least."""

    num_bytes: float
    flops: float

    def floor_us(self, bytes_per_us: float) -> float:
        """The larger of both floors."""
        return max(self.num_bytes / bytes_per_us, self.flops / TENSOR_TFLOPS / 1e6)


class RecordingOps:
    """Ops that remember their calls while `calls` is a list; to be used where `BoundOps` are."""

    def __init__(self, ops: BoundOps) -> None:
        self._ops = ops
        self.calls: list[Call] | None = None

    def __getattr__(self, op: str) -> Callable[..., Any]:
        function = getattr(self._ops, op)

        def call(*args: Any, **kwargs: Any) -> Any:
            result = function(*args, **kwargs)
            if self.calls is not None:
                self.calls.append(Call(op, function, args, kwargs, result))
            return result

        return call


def label(call: Call) -> str:
    """The op, and for products the size of the weight."""
    if call.op in ("fp8_linear", "grouped_fp8_linear", "expert_linear"):
        weight = call.args[1]
        return f"{call.op} {weight.out_features} x {weight.in_features}"
    if call.op == "bf16_linear":
        return f"{call.op} {call.args[1].shape[0]} x {call.args[1].shape[1]}"
    if call.op in ("norm_rope_store", "store_records"):
        return f"{call.op} {call.args[-1].value}"
    if call.op == "select_topk":
        return f"{call.op} {call.args[2]} of {call.args[0].shape[1]}"
    return call.op


def cost(call: Call) -> Cost:
    """The least that the call can cost."""
    own = _COSTS.get(call.op)
    return own(call) if own is not None else Cost(_bytes(call.args, call.kwargs, call.result), 0.0)


def tensors(value: Any) -> Iterator[torch.Tensor]:
    """All tensors inside of an argument or a result."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        yield from tensors(tuple(value.values()))
    elif isinstance(value, list | tuple):
        for item in value:
            yield from tensors(item)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        yield from tensors(tuple(getattr(value, field.name) for field in dataclasses.fields(value)))


def _bytes(*values: Any) -> float:
    return float(sum(tensor.nbytes for tensor in tensors(values)))


def _linear(call: Call) -> Cost:
    x, weight = call.args[:2]
    rows = next(tensors(x)).shape[0]
    size = weight.numel() if isinstance(weight, torch.Tensor) else weight.out_features * weight.in_features
    return Cost(_bytes(x, weight, call.result), 2.0 * rows * size)


def _expert_linear(call: Call) -> Cost:
    x, weights, plan = call.args
    used = int((plan.tokens >= 0).sum())
    tiles = plan.tiles[: int(plan.num_tiles)]
    touched = int(torch.unique(tiles[:, 0]).numel())
    per_expert = weights.tiles[0].nbytes
    size = weights.out_features * weights.in_features
    moved = _bytes(x) + touched * per_expert + used * weights.out_features * 2
    return Cost(moved, 2.0 * used * size)


def _rotate_rows(call: Call) -> Cost:
    x, cos, sin = call.args
    return Cost(2.0 * 2 * x.shape[0] * x.shape[1] * 2 * cos.shape[1] + _bytes(cos, sin), 0.0)


def _stored(call: Call) -> Cost:
    """Rows that become records: the view stands for as many of them."""
    view = next(arg for arg in call.args if isinstance(arg, torch.Tensor) and arg.dim() == 4)
    slots = call.args[-2] if call.op == "norm_rope_store" else call.args[1]
    stored = int((slots >= 0).sum())
    others = [arg for arg in call.args if arg is not view]
    return Cost(_bytes(others, call.result) + stored * view.shape[3], 0.0)


def _gathered(call: Call) -> Cost:
    view, slots = call.args[:2]
    return Cost(_bytes(slots, call.result) + int((slots >= 0).sum()) * view.shape[3], 0.0)


def _pool_decode(call: Call) -> Cost:
    score, latent, ring, *_, ratio = call.args
    rows = _bytes(score, latent)
    return Cost(2 * rows + (ratio - 1) * score.shape[0] * ring[0, 0].nbytes + _bytes(call.result), 0.0)


def _paged_scores(call: Call) -> Cost:
    q, q_scales, head_weights, view, _, visible = call.args[:6]
    return _score_cost(q, _bytes(q, q_scales, head_weights), int(visible.sum()), view.shape[3])


def _paged_candidates(call: Call) -> Cost:
    q, q_scales, head_weights, view, _, visible, blocks, size = call.args
    inside = (visible[:, None] - blocks * size).clamp(min=0, max=size)
    keys = int(torch.where(blocks < 0, 0, inside).sum())
    return _score_cost(q, _bytes(q, q_scales, head_weights, blocks), keys, view.shape[3])


def _row_scores(call: Call) -> Cost:
    """Of keys in one matrix; every row scores its own range of them, or the part of it that its blocks list."""
    q, q_scales, head_weights, keys, key_scales, begin, end = call.args[:7]
    visible = end - begin
    if call.op == "candidate_scores_rows":
        blocks, size = call.args[7:9]
        inside = (visible[:, None] - blocks * size).clamp(min=0, max=size)
        visible = torch.where(blocks < 0, 0, inside)
    pairs = int(visible.sum())
    moved = _bytes(q, q_scales, head_weights, keys, key_scales) + 2 * pairs
    return Cost(moved, 2.0 * pairs * q.shape[1] * 2 * q.shape[2])


def _score_cost(q: torch.Tensor, fixed: float, num_keys: int, record: int) -> Cost:
    return Cost(fixed + num_keys * (record + 2), 2.0 * num_keys * q.shape[1] * 2 * q.shape[2])


def _of_visible(call: Call) -> Cost:
    scores, visible = call.args[:2]
    return Cost(int(visible.sum()) * scores.element_size() + _bytes(visible, call.result), 0.0)


def _slots(call: Call) -> Cost:
    return Cost(2 * _bytes(call.args[0]) + _bytes(call.result), 0.0)


def _paged_attention(call: Call) -> Cost:
    q, window, window_slots, main, main_slots = call.args[:5]
    keys = int((window_slots >= 0).sum())
    moved = _bytes(q, window_slots, call.result) + keys * window.shape[3]
    if main is not None:
        entries = int((main_slots >= 0).sum())
        keys += entries
        moved += _bytes(main_slots) + entries * main.shape[3]
    shared = q.shape[0] // max(window_slots.shape[0], 1)
    return Cost(moved, 4.0 * keys * shared * q.shape[1] * q.shape[2])


def _sparse_attention(call: Call) -> Cost:
    q, keys, indices = call.args[:3]
    named = indices[indices >= 0]
    moved = _bytes(q, indices, call.result) + int(torch.unique(named).numel()) * keys[0].nbytes
    return Cost(moved, 4.0 * named.numel() * q.shape[1] * q.shape[2])


def _pool_prefill(call: Call) -> Cost:
    score, latent = call.args[:2]
    return Cost(_bytes(score, latent, call.result), 0.0)


def _engram_lookup(call: Call) -> Cost:
    buckets = call.args[2]
    return Cost(2 * _bytes(call.result) + _bytes(buckets), 0.0)


_COSTS: dict[str, Callable[[Call], Cost]] = {
    "fp8_linear": _linear,
    "grouped_fp8_linear": _linear,
    "bf16_linear": _linear,
    "expert_linear": _expert_linear,
    "rotate_rows": _rotate_rows,
    "norm_rope_store": _stored,
    "store_records": _stored,
    "gather_records": _gathered,
    "gather_parts": _gathered,
    "pool_decode": _pool_decode,
    "pool_prefill": _pool_prefill,
    "indexer_scores_rows": _row_scores,
    "candidate_scores_rows": _row_scores,
    "sparse_attention": _sparse_attention,
    "paged_indexer_scores": _paged_scores,
    "paged_candidate_scores": _paged_candidates,
    "block_scores": _of_visible,
    "select_topk": _of_visible,
    "select_candidate_blocks": lambda call: Cost(_bytes(call.args[0], call.args[1], call.result), 0.0),
    "topk_to_slots": _slots,
    "restore_indices": _slots,
    "paged_sparse_attention": _paged_attention,
    "engram_lookup": _engram_lookup,
}
