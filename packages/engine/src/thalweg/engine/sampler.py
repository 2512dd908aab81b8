"""From logits to tokens, on the device.

A row's token depends on nothing but its logits and its own parameters, seed and position, so it is the same alone and
in any batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from thalweg.engine.drawn_rows import drawn_rows
from thalweg.engine.sampler_inputs import ROW_POSITION_STRIDE, SamplerInputs
from thalweg.engine.upload import Uploader
from thalweg.interfaces import InvariantError


@dataclass(frozen=True, slots=True)
class Draws:
    """The sampler's answer for every sampled row."""

    token_ids: torch.Tensor
    """int32 [S]"""
    broken_rows: torch.Tensor
    """bool [S] rows whose logits hold NaN or infinity, or nothing that may be drawn; their token is meaningless."""


class Sampler:
    """Masks what may not be drawn, then draws: argmax (lowest id) when greedy, else temperature, top-p, top-k.

    ops: bound kernel ops; `sample_tokens`, `coupled_tokens` and `argmax_lowest` are used. is_coupled: a token is a
    function of its own index, not of the row and step that drew it. Needed to verify drafts by matching.
    """

    def __init__(self, ops: Any, upload: Uploader, *, is_coupled: bool = False) -> None:
        self._ops = ops
        self._upload = upload
        self._draw_tokens = ops.coupled_tokens if is_coupled else ops.sample_tokens
        self._stride = 1 if is_coupled else ROW_POSITION_STRIDE

    def sample(self, logits: torch.Tensor, inputs: SamplerInputs) -> Draws:
        """Draw one token per sampled row. logits: float32 [S, V]; may be overwritten."""
        broken = self.clean(logits, inputs)
        drawn = drawn_rows(self._upload, inputs, inputs.sequence_rows)
        if drawn is None:
            return Draws(self._ops.argmax_lowest(logits), broken)
        positions = self._upload(inputs.row_positions(self._stride)[drawn.host_rows])
        token_ids = self._draw_tokens(drawn.part(logits), *drawn.filters, drawn.seeds, positions)
        return Draws(drawn.among(lambda: self._ops.argmax_lowest(logits), token_ids), broken)

    def clean(self, logits: torch.Tensor, inputs: SamplerInputs) -> torch.Tensor:
        """Mask what may not be drawn, and find the broken rows, bool [S]; afterwards all numbers are usable."""
        if logits.shape[0] != inputs.sequence_rows.size:
            raise InvariantError(f"{logits.shape[0]} rows of logits for {inputs.sequence_rows.size} sampled rows")
        if inputs.forbidden_rows.size:
            pairs = self._upload(inputs.forbidden_rows), self._upload(inputs.forbidden_ids)
            logits.index_put_(pairs, torch.full((), -torch.inf, dtype=logits.dtype, device=logits.device))
        return zero_broken_rows(logits)


def zero_broken_rows(logits: torch.Tensor) -> torch.Tensor:
    """Rows bool [n] whose largest logit is not finite; they become zeros, so that whatever reads them finds numbers."""
    broken = ~torch.isfinite(logits.amax(dim=-1))
    logits.masked_fill_(broken[:, None], 0.0)
    return broken
