"""Copies to the host of what a step reports.

The arrays are views of host memory that is on its way: their contents exist once the step's last event has passed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from thalweg.engine.row_reports import RowDraws, RowLogprobs
from thalweg.engine.step_report import StepReport, TokenLogprobs
from thalweg.engine.verified import RowVerdicts, Verified
from thalweg.interfaces import Backend


class ReportCopies:
    """Starts asynchronous copies."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def copy(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor in host memory, in stream order."""
        copied: torch.Tensor = self._backend.copy_to_host(tensor)[0]
        return copied

    def together(self, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Tensors of 4-byte numbers and of flags in host memory, in stream order, by one transfer."""
        parts = sorted(tensors.items(), key=lambda item: -item[1].element_size())  # flags last: they need no alignment
        packed = self.copy(torch.cat([tensor.reshape(-1).view(torch.uint8) for _, tensor in parts]))
        copies, end = {}, 0
        for name, tensor in parts:
            start, end = end, end + tensor.nbytes
            copies[name] = packed[start:end].view(tensor.dtype).view(tensor.shape)
        return copies

    def logprobs(self, offsets: NDArray[np.int64], token_ids: torch.Tensor, logprobs: TokenLogprobs) -> RowLogprobs:
        """Of tokens int32 [R], the sequences' own at offsets."""
        return RowLogprobs(
            offsets,
            self._array(token_ids),
            self._array(logprobs.logprobs),
            self._array(logprobs.top_ids),
            self._array(logprobs.top_logprobs),
        )

    def of_tokens(self, report: StepReport, verified: Verified) -> RowLogprobs | None:
        """Log-probabilities of what the rows yielded; None if nobody asked."""
        found = report.logprobs(verified.row_token_ids)
        if found is None or report.rows is None:
            return None
        return self.logprobs(report.rows.offsets, *found)

    def of_draws(self, report: StepReport, verified: Verified) -> RowDraws | None:
        """How the rows were drawn; None if that is not reported."""
        sums = report.sum_smaller_probs(verified.row_token_ids)
        if sums is None or report.draw_rows is None:
            return None
        verdicts = verified.verdicts
        if verdicts is None:  # no drafts
            none_judged = torch.full_like(sums, torch.nan)
            verdicts = RowVerdicts(none_judged, none_judged)
        return RowDraws(
            report.draw_rows.offsets,
            self._array(sums),
            self._array(verdicts.draft_logprobs),
            self._array(verdicts.accept_probs),
        )

    def _array(self, tensor: torch.Tensor) -> NDArray[Any]:
        array: NDArray[Any] = self.copy(tensor).numpy()
        return array
