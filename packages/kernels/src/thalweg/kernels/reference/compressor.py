"""Pooling of the compressor: r neighbouring tokens become one entry, with a small ring that remembers open groups.

Letters: T new rows, N sequences, E pooled rows, D channels, r ratio, L ring length. The ring is a tensor [slots, L, 2,
D] (0 = score, 1 = latent) of any strides; position p of a sequence lives at row p mod L of its slot. Rows are carried
in float32 or float64 and pooled in that dtype; the ring may be narrower (float32 rows of a float64 run: the model
rounds score and latent to float32 before it calls). Norm and rotation come after the pooling and are not done here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from thalweg.interfaces import ConfigError
from thalweg.kernels.reference.numerics import check_count, check_integers

SCORE = 0
LATENT = 1


def pool_groups(score: torch.Tensor, latent: torch.Tensor) -> torch.Tensor:
    """The pooled rows [..., D] of whole groups.

    score, latent: [..., r, D] any float dtype. Per channel: softmax of the r scores, weighted sum of the r latents,
    added in token order, so that a row does not depend on the rows beside it. Differentiable. bfloat16 is computed in
    float32 and rounded once.
    """
    if score.shape != latent.shape or score.dim() < 2 or score.shape[-2] == 0:
        raise ConfigError(
            f"score {tuple(score.shape)} and latent {tuple(latent.shape)} must have one shape [..., ratio, D]"
        )
    wide_score, wide_latent = _widen(score), _widen(latent)
    exponentials = torch.exp(wide_score - wide_score.amax(dim=-2, keepdim=True))
    ratio = score.shape[-2]
    total = exponentials[..., 0, :]
    for token in range(1, ratio):
        total = total + exponentials[..., token, :]
    pooled = (exponentials[..., 0, :] / total) * wide_latent[..., 0, :]
    for token in range(1, ratio):
        pooled = pooled + (exponentials[..., token, :] / total) * wide_latent[..., token, :]
    return pooled.type_as(latent)


def pool_prefill(
    score: torch.Tensor,
    latent: torch.Tensor,
    ring: torch.Tensor,
    state_slots: torch.Tensor,
    query_offsets: torch.Tensor,
    first_positions: torch.Tensor,
    compressed_offsets: torch.Tensor,
    ratio: int,
    row_order: torch.Tensor | None = None,
    *,
    num_entries: int | None = None,
) -> torch.Tensor:
    """The pooled rows [E, D] that the chunks of a prefill step complete; the ring then holds the end of each chunk.

    score, latent: [T, D], the chunks one after the other. ring: [slots, L, 2, D], updated in place.
    state_slots, first_positions: int [N], slot and position of the first chunk row of each sequence.
    query_offsets, compressed_offsets: int [N+1], rows of each chunk in T and of each sequence in E. A sequence that
    completes no entry still has one row, which is zero. row_order: optional int [T], row x of the chunks is
    score[row_order[x]] (context parallelism). num_entries: E, read back from the device if the host does not give it.

    Positions before a chunk come from the ring, which is read before it is written; the last min(chunk, L) rows are
    stored.
    """
    check_pool_rows(score, latent, ring, ratio)
    check_chunks(score, state_slots, query_offsets, first_positions, compressed_offsets, row_order, num_entries)
    if row_order is not None:
        score, latent = score[row_order.long()], latent[row_order.long()]
    offsets, first, slots = query_offsets.long(), first_positions.long(), state_slots.long()
    length = ring.shape[1]
    lengths = offsets[1:] - offsets[:-1]

    sequence, rank = _rows_of(compressed_offsets.long(), slots.numel(), num_entries)
    entry = first[sequence] // ratio + rank
    is_entry = (entry + 1) * ratio <= (first + lengths)[sequence]
    position = entry[:, None] * ratio + torch.arange(ratio, device=ring.device)
    chunk_row = position - first[sequence, None]
    is_new = (chunk_row >= 0) & is_entry[:, None]
    row = torch.where(is_new, offsets[sequence, None] + chunk_row, 0)
    old = ring[slots[sequence, None], position % length]
    group_score = torch.where(is_new[..., None], score[row], old[..., SCORE, :].type_as(score))
    group_latent = torch.where(is_new[..., None], latent[row], old[..., LATENT, :].type_as(latent))
    pooled = torch.where(is_entry[:, None], pool_groups(group_score, group_latent), 0.0)

    sequence, rank = _rows_of(offsets, slots.numel(), score.shape[0])
    is_kept = lengths[sequence] - rank <= length
    kept = is_kept.nonzero()[:, 0]
    _store(ring, slots[sequence[kept]], (first[sequence] + rank)[kept], score[kept], latent[kept])
    return pooled


def pool_decode(
    score: torch.Tensor,
    latent: torch.Tensor,
    ring: torch.Tensor,
    state_slots: torch.Tensor,
    context_lengths: torch.Tensor,
    ratio: int,
) -> torch.Tensor:
    """One row per query [T, D]: the entry that the query's position completes, zeros where it completes none.

    score, latent: [T, D]. ring: [slots, L, 2, D], updated in place: all new rows are written first, then the groups are
    read, so L must be at least r + (largest number of queries of one sequence) - 1. state_slots, context_lengths:
    int [T], slot and position + 1 of each query. Of two queries with one slot and position (placeholders) either stays.
    """
    check_pool_rows(score, latent, ring, ratio)
    check_integers("state_slots", state_slots, (score.shape[0],))
    check_integers("context_lengths", context_lengths, (score.shape[0],))
    slots = state_slots.long()
    position = context_lengths.long() - 1
    _store(ring, slots, position, score, latent)
    closes = (position + 1) % ratio == 0
    group_position = (position // ratio * ratio)[:, None] + torch.arange(ratio, device=ring.device)
    group = ring[slots[:, None], group_position % ring.shape[1]]
    pooled = pool_groups(group[..., SCORE, :].type_as(score), group[..., LATENT, :].type_as(latent))
    return torch.where(closes[:, None], pooled, 0.0)


def _store(
    ring: torch.Tensor, slots: torch.Tensor, positions: torch.Tensor, score: torch.Tensor, latent: torch.Tensor
) -> None:
    rows = torch.stack((score, latent), dim=1).type_as(ring)
    ring[slots, positions % ring.shape[1]] = rows


def _rows_of(offsets: torch.Tensor, num_sequences: int, num_rows: int | None) -> tuple[torch.Tensor, torch.Tensor]:
    """Sequence of each row and its rank inside the sequence, from boundaries [N+1]."""
    counts = offsets[1:] - offsets[:-1]
    sequence = torch.repeat_interleave(torch.arange(num_sequences, device=offsets.device), counts, output_size=num_rows)
    rank = torch.arange(sequence.numel(), device=offsets.device) - offsets[sequence]
    return sequence, rank


def _widen(x: torch.Tensor) -> torch.Tensor:
    return x if x.dtype == torch.float64 else x.float()


def check_pool_rows(score: torch.Tensor, latent: torch.Tensor, ring: torch.Tensor, ratio: int) -> None:
    """Raise ConfigError unless new rows and the ring go together."""
    if not isinstance(ratio, int) or ratio < 2:
        raise ConfigError(f"ratio is {ratio}; pooling needs at least 2 (ratio 1 has no groups)")
    if score.dim() != 2 or score.shape != latent.shape:
        raise ConfigError(f"score {tuple(score.shape)} and latent {tuple(latent.shape)} must have one shape [rows, D]")
    if ring.dim() != 4 or ring.shape[2] != 2 or ring.shape[3] != score.shape[1]:
        raise ConfigError(f"ring is {tuple(ring.shape)}; rows of {score.shape[1]} channels need [slots, length, 2, D]")
    if ring.dtype not in (torch.float32, torch.float64):
        raise ConfigError(f"ring is {ring.dtype}; float32 and float64 are accepted")
    if ring.shape[1] < ratio:
        raise ConfigError(f"ring length is {ring.shape[1]}; ratio {ratio} needs at least that many rows")
    if ring.shape[0] == 0:
        raise ConfigError("ring has no slots; at least one is required")
    for name, tensor in (("score", score), ("latent", latent)):
        if not tensor.is_floating_point():
            raise ConfigError(f"{name} has dtype {tensor.dtype}; floating point is required")


def check_chunks(
    score: torch.Tensor,
    state_slots: torch.Tensor,
    query_offsets: torch.Tensor,
    first_positions: torch.Tensor,
    compressed_offsets: torch.Tensor,
    row_order: torch.Tensor | None,
    num_entries: int | None,
) -> None:
    """Raise ConfigError unless the integers of `pool_prefill` go together with each other and with the rows."""
    check_integers("state_slots", state_slots, ("N",))
    (count,) = state_slots.shape
    check_integers("query_offsets", query_offsets, (count + 1,))
    check_integers("first_positions", first_positions, (count,))
    check_integers("compressed_offsets", compressed_offsets, (count + 1,))
    if row_order is not None:
        check_integers("row_order", row_order, (score.shape[0],))
    if num_entries is not None:
        check_count("num_entries", num_entries)


OPS: dict[str, Callable[..., Any]] = {
    "pool_groups": pool_groups,
    "pool_prefill": pool_prefill,
    "pool_decode": pool_decode,
}
"""Ops of this module by name, for the registry."""
