"""Rows whose token means nothing."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class RowFaults:
    """What was wrong with the logits of n rows, or of n outputs by the row that their newest token comes from."""

    broken: torch.Tensor
    """bool [n] nothing can be drawn: logits that are no numbers, or none that is left; starved rows are broken, too."""
    starved: torch.Tensor | None = None
    """bool [n] the grammar allows none of the tokens that were left. None = no row has a grammar."""

    def at(self, rows: torch.Tensor) -> RowFaults:
        """Those of some rows, int64."""
        return RowFaults(self.broken[rows], None if self.starved is None else self.starved[rows])

    def then(self, others: RowFaults) -> RowFaults:
        """These, then the others, which know as much."""
        if self.starved is None or others.starved is None:
            return RowFaults(torch.cat((self.broken, others.broken)))
        return RowFaults(torch.cat((self.broken, others.broken)), torch.cat((self.starved, others.starved)))
