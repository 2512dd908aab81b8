"""From logits to the next token of every sequence.

A row's token depends on nothing but its logits and its own parameters, seed and position, so it is the same alone and
in any batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from thalweg.engine.sampler_inputs import SamplerInputs
from thalweg.interfaces import InvariantError
from thalweg.kernels.reference.sampling import GREEDY_BELOW


@dataclass(frozen=True, slots=True)
class Sampled:
    """The sampler's answer for the sequences of a step."""

    token_ids: NDArray[np.int32]
    """[N]"""
    broken_rows: NDArray[np.bool_]
    """[N] sequences whose logits hold NaN or infinity, or nothing that may be drawn; their token is meaningless."""


class Sampler:
    """Masks what may not be drawn, then draws: argmax (lowest id) when greedy, else temperature, top-p, top-k.

    ops: bound kernel ops; `sample_tokens` and `argmax_lowest` are used.
    """

    def __init__(self, ops: Any) -> None:
        self._ops = ops

    def sample(self, logits: torch.Tensor, inputs: SamplerInputs) -> Sampled:
        """Draw one token per sequence. logits: float32 [S, V], one row per sampled row; may be overwritten."""
        num_sequences = inputs.temperatures.size
        if logits.shape[0] != num_sequences or inputs.sequence_rows.size != num_sequences:
            raise InvariantError(f"{logits.shape[0]} rows of logits for {num_sequences} sequences without drafts")
        if inputs.forbidden_rows.size:
            pairs = (
                torch.from_numpy(array).to(logits.device) for array in (inputs.forbidden_rows, inputs.forbidden_ids)
            )
            logits[tuple(pairs)] = -torch.inf
        broken = ~torch.isfinite(logits.amax(dim=-1))
        if broken.any():
            logits[broken] = 0.0
        token_ids = self._draw(logits, inputs)
        return Sampled(token_ids.cpu().numpy().astype(np.int32, copy=False), broken.cpu().numpy())

    def _draw(self, logits: torch.Tensor, inputs: SamplerInputs) -> torch.Tensor:
        if (inputs.temperatures < GREEDY_BELOW).all():
            greedy: torch.Tensor = self._ops.argmax_lowest(logits)
            return greedy
        parameters = (inputs.temperatures, inputs.top_ps, inputs.top_ks, inputs.seeds, inputs.row_positions)
        drawn: torch.Tensor = self._ops.sample_tokens(
            logits, *(torch.from_numpy(array).to(logits.device) for array in parameters)
        )
        return drawn
