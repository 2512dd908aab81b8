"""Tables that say nothing useful after some texts."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from drafts_testing.tables import Tables

POISONS = (torch.nan, torch.inf, -torch.inf)
"""One NaN, one infinity, or nothing but minus infinity."""


class PoisonedTables(Tables):
    """Other tables, but for the logits after these texts.

    texts: (prompt and beginning of the output, one of `POISONS`).
    """

    def __init__(self, healthy: Tables, texts: Sequence[tuple[Sequence[int], float]]) -> None:
        super().__init__(healthy.logits, healthy.memory)
        self._states = torch.tensor([int(self.states(text)[-1]) for text, _ in texts], dtype=torch.int64)
        self._poisons = torch.tensor([poison for _, poison in texts])

    def after(self, states: torch.Tensor) -> torch.Tensor:
        logits = super().after(states)
        rows, numbers = (states[:, None] == self._states).nonzero(as_tuple=True)
        for row, poison in zip(rows.tolist(), self._poisons[numbers].tolist(), strict=True):
            if poison == -torch.inf:
                logits[row] = poison
            else:
                logits[row, row % self.vocab_size] = poison
        return logits
