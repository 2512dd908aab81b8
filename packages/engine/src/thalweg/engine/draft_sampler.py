"""How drafts are drawn: with the parameters of their request, from random streams of their own.

Letters: N sequences, R of them drawn at random, G draft length, V vocabulary.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import torch

from thalweg.engine.draft_pool import DraftPool
from thalweg.engine.drawn_rows import DrawnRows, drawn_rows
from thalweg.engine.sampler_inputs import ROW_POSITION_STRIDE, SamplerInputs
from thalweg.engine.upload import Uploader

DRAFT_SEED_OFFSET = 1000000007
"""Added to the seed of a request, so that drafts are independent of the draws that judge them."""

DraftPositions = Literal["per_step", "absolute"]


def draft_positions(first: torch.Tensor, draft_length: int, rule: DraftPositions) -> torch.Tensor:
    """int64 [G, N] positions of drafts in the random streams of their sequences.

    first: int [N] index of the token that the first draft proposes. `per_step`: the position of the row that will judge
    the draft, so no draft of a later step draws the same number. `absolute`: the index of the draft's own token; with
    verify lengths that vary by confidence this biases what is accepted.
    """
    places = torch.arange(draft_length, device=first.device)[:, None]
    return first.long() + places * (ROW_POSITION_STRIDE if rule == "per_step" else 1)


class SeededDraftSampler:
    """Draws the drafts of one step; satisfies `thalweg.interfaces.DraftSampler`.

    first_positions: int [N] index of the token that each sequence's first draft proposes. With a pool, drafts are drawn
    fresh and their distributions are kept in it, except of greedy requests. Without one they are coupled to the tokens
    they guess: same seed, position by `absolute`. force_top_k: as in `SamplingConfig`; nothing else that holds for the
    tokens holds for their drafts, as any draft may be judged.
    """

    def __init__(
        self,
        ops: Any,
        upload: Uploader,
        inputs: SamplerInputs,
        first_positions: torch.Tensor,
        draft_length: int,
        *,
        rule: DraftPositions,
        pool: DraftPool | None,
        force_top_k: int = 0,
    ) -> None:
        self._ops = ops
        self._force_top_k = force_top_k
        self._pool = pool
        self._draft_length = draft_length
        self._drawn = drawn_rows(
            upload,
            inputs,
            np.arange(inputs.sequence_ids.size),
            inputs.draft_write_slots,
            seed_offset=0 if pool is None else DRAFT_SEED_OFFSET,
        )
        self._positions: torch.Tensor | None = None
        """int64 [G, R]"""
        if self._drawn is not None:
            first = self._drawn.part(first_positions)
            self._positions = draft_positions(first, draft_length, "absolute" if pool is None else rule)
        self.drawn: list[torch.Tensor] = []
        """int32 [N] per place so far."""

    def sample(self, place: int, logits: torch.Tensor) -> torch.Tensor:
        """Ids int32 [N] of draft `place` from logits float32 [N, V], which may be overwritten.

        Logits that are not numbers count as equal. Raises ValueError for a place out of turn.
        """
        if place != len(self.drawn) or place >= self._draft_length:
            raise ValueError(
                f"place is {place}; of {self._draft_length} drafts {len(self.drawn)} are drawn, and they come in order"
            )
        drawn, positions, ops = self._drawn, self._positions, self._ops
        ops.clear_broken_rows(logits)
        if self._force_top_k:
            ops.keep_largest(logits, self._force_top_k)
        if drawn is None or positions is None:
            token_ids: torch.Tensor = ops.argmax_lowest(logits)
        else:
            fresh = self._draw(place, drawn, positions[place], drawn.part(logits))
            token_ids = drawn.among(lambda: ops.argmax_lowest(logits), fresh)
        self.drawn.append(token_ids.clone())  # the drafter may change its own
        return token_ids

    def keep(self, is_certain: torch.Tensor) -> None:
        """Remember which drafts, bool [N, G], were not drawn from what is in the pool."""
        if self._pool is not None and self._drawn is not None:
            self._pool.store_certain(self._drawn.values, self._drawn.part(is_certain))

    def _draw(self, place: int, drawn: DrawnRows, positions: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        """Ids int32 [R] of the drawn rows. logits: float32 [R, V] of those. positions: int64 [R]."""
        if self._pool is None:
            coupled: torch.Tensor = self._ops.coupled_tokens(logits, *drawn.filters, drawn.seeds, positions)
            return coupled
        logprobs = self._ops.filtered_logprobs(logits, *drawn.filters)
        self._pool.store(place, drawn.values, logprobs)
        fresh: torch.Tensor = self._ops.draw(logprobs.exp(), self._ops.uniform(drawn.seeds, positions))
        return fresh
