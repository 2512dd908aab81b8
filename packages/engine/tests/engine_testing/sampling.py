"""Sampler inputs as tests want them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from thalweg.engine.logit_edits import LogitEdits
from thalweg.engine.sampler_inputs import SamplerInputs
from thalweg.engine.sampling_row import PARAMETERS, SamplingRow


def records(rows: Sequence[SamplingRow]) -> NDArray[Any]:
    """[N] records of `PARAMETERS`."""
    return np.frombuffer(b"".join(row.packed for row in rows), PARAMETERS).copy()


def forbidding(pairs: Sequence[tuple[int, int]]) -> LogitEdits:
    """(row, token id) pairs that may not be drawn."""
    array = np.array(pairs, np.int64).reshape(-1, 2)
    nothing = np.zeros(0, np.int64)
    return LogitEdits(array[:, 0].copy(), array[:, 1].copy(), nothing, nothing, np.zeros(0, np.float32))


def sampler_inputs(rows: Sequence[SamplingRow], counts: Sequence[int] | None = None, **fields: Any) -> SamplerInputs:
    """Sequences with so many sampled rows each, by default one; everything else at rest unless given."""
    lengths = np.ones(len(rows), np.int64) if counts is None else np.array(counts, np.int64)
    values: dict[str, Any] = {
        "sequence_ids": np.arange(len(rows)),
        "has_drafts": counts is not None,
        "sequence_rows": np.repeat(np.arange(len(rows)), lengths),
        "first_rows": np.cumsum(lengths) - lengths,
        "parameters": records(rows),
        "sample_positions": np.arange(len(rows)) + 5,
        "makes_output": np.ones(len(rows), np.bool_),
        "draft_read_slots": np.zeros(len(rows), np.int32),
        "draft_write_slots": np.zeros(len(rows), np.int32),
    }
    return SamplerInputs(**(values | fields))


def plain_logprobs(logits: torch.Tensor, row: SamplingRow, force_top_k: int = 0) -> torch.Tensor:
    """float64 [V], what a request draws from logits [V], written out once more. Equal logits are not provided for."""
    order = torch.argsort(logits, descending=True)
    values = logits.to(torch.float64, copy=True)
    if force_top_k:
        values[order[force_top_k:]] = -torch.inf
    if row.temperature < 1e-5:
        return torch.log_softmax(values / 1e-5, 0)
    probs = torch.softmax(values / row.temperature, 0)
    before = probs[order].cumsum(0) - probs[order]
    probs[order[before > row.top_p]] = 0
    if row.top_k > 0:
        probs[order[row.top_k :]] = 0
    return torch.log(probs / probs.sum())
