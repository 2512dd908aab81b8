"""What each mechanism carries: the loss with one op of the model replaced, against the loss of the model itself.

Nothing is retrained, so a figure says how much the trained model relies on a mechanism, not how well it could do
without. Letters: n rows, M entries, k selected ones, m streams, E experts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from tools.train.evaluate import ops
from tools.train.evaluate.losses import window_losses
from tools.train.evaluate.models import Subject
from tools.train.evaluate.ops import Op
from tools.train.evaluate.report import Figure
from tools.train.evaluate.windows import Windows
from torch import Tensor

MEASURE = "ablations"
FEWER_ENTRIES = 16
LEAST_NATS = {"most recent entries for the indexer's": 0.10, "Engram off": 0.20}


def measure(subject: Subject, windows: Windows) -> Iterator[Figure]:
    """What every replacement adds to the loss, plain."""
    torch.manual_seed(0)  # two replacements draw
    own = window_losses(subject.model("plain"), subject, windows).mean()
    for name, replaced in replacements().items():
        added = float(window_losses(subject.model("plain", replaced), subject, windows).mean() - own)
        yield Figure(MEASURE, name, added, "nats/token", windows.description, least=LEAST_NATS.get(name))


def replacements() -> Mapping[str, Mapping[str, Op]]:
    """By name, the ops that stand in for those of the model."""
    return {
        "most recent entries for the indexer's": {"select_topk": most_recent},
        "random entries for the indexer's": {"select_topk": random_entries},
        "all visible entries": {"select_topk": all_visible},
        f"{FEWER_ENTRIES} entries": {"select_topk": fewer_entries},
        "no restriction to candidate blocks": {"restrict_to_blocks": lambda scores, blocks, block_size: scores},
        "Engram off": {"engram_apply": lambda x, value, gate, image_mask: x},
        "Engram rows permuted": {"engram_hash": permuted_hash},
        "no attention sinks": {"sparse_attention": without_sink},
        "experts drawn at random": {"route": random_experts},
        "hyper-connections that ignore the token": {"hc_mixes": constant_mixes},
        "streams that do not mix": {"hc_coefficients": unmixed_streams},
    }


def most_recent(scores: Tensor, visible: Tensor, k: int) -> Tensor:
    """The op `select_topk` without looking at scores: the last entries of each row."""
    count = visible.clamp(max=k)[:, None]
    column = torch.arange(k, device=scores.device)
    return torch.where(column < count, visible[:, None] - count + column, -1).int()


def random_entries(scores: Tensor, visible: Tensor, k: int) -> Tensor:
    """The op `select_topk` by lot."""
    selection: Tensor = ops.reference("select_topk")(torch.rand_like(scores), visible, k)
    return selection


def all_visible(scores: Tensor, visible: Tensor, k: int) -> Tensor:
    """The op `select_topk` without a limit: int32 [n, M]."""
    column = torch.arange(scores.shape[1], device=scores.device)
    return torch.where(column < visible[:, None], column, -1).int()


def fewer_entries(scores: Tensor, visible: Tensor, k: int) -> Tensor:
    """The op `select_topk` for a smaller k."""
    selection: Tensor = ops.reference("select_topk")(scores, visible, FEWER_ENTRIES)
    return selection


def permuted_hash(
    ngram_ids: Tensor, multipliers: Tensor, primes: Tensor, offsets: Tensor, image_mask: Tensor | None = None
) -> Tensor:
    """The op `engram_hash` over a table whose rows have changed places: every n-gram finds another one's row."""
    rows: Tensor = ops.reference("engram_hash")(ngram_ids, multipliers, primes, offsets, image_mask)
    num_rows = int(offsets[-1] + primes[-1])
    places = torch.randperm(num_rows, generator=torch.Generator().manual_seed(0))
    return places.to(rows.device)[rows]


def without_sink(q: Tensor, keys: Tensor, indices: Tensor, sink: Tensor | None, scale: float) -> Tensor:
    """The op `sparse_attention` with keys alone in the denominator."""
    return ops.sparse_attention(q, keys, indices, None, scale)


def random_experts(scores: Tensor, bias: Tensor | None, topk: int, scaling: float, **masks: Tensor | None) -> object:
    """The op `route` by lot."""
    return ops.reference("route")(torch.rand_like(scores), None, topk, scaling)


def constant_mixes(x: Tensor, fn: Tensor, eps: float) -> Tensor:
    """The op `hc_mixes` for a trunk of zeros: coefficients come from their biases alone."""
    return x.new_zeros(x.shape[0], fn.shape[0])


def unmixed_streams(
    z: Tensor, scale: Tensor, base: Tensor, m: int, iters: int, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """The op `hc_coefficients` with every stream carried on as it is."""
    read, write, carry = ops.reference("hc_coefficients")(z, scale, base, m, iters, eps)
    return read, write, torch.eye(m, dtype=carry.dtype, device=carry.device).expand_as(carry)
