"""How likely the tokens of a prompt were, worked out while its chunks go through the model.

Letters: N sequences, P prompt tokens looked at, n of them in a slab, K alternatives, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from numpy.typing import NDArray

from thalweg.engine.drawn_rows import filter_tensors
from thalweg.engine.prompt_rows import PromptRows
from thalweg.engine.slabs import slabs
from thalweg.engine.step_report import TokenLogprobs, token_logprobs
from thalweg.engine.upload import Uploader

MAX_SLAB_ROWS = 8192
SLAB_ELEMENTS = 1 << 24
"""Logits that exist at a time: 64 MiB, 129 rows of a vocabulary of 129,280."""

RowLogits = Callable[[torch.Tensor], torch.Tensor]
"""Logits float32 [n, V], the caller's to overwrite, of rows int64 [n] of the query tokens of a step."""


class PromptLogprobs:
    """Log-probabilities of prompt tokens, a slab of rows after the other.

    ops: bound kernel ops. is_raw: of the model; otherwise with temperature, filters and `force_top_k` (0 = off) of the
    draws, but no masks, biases or penalties.
    """

    def __init__(self, ops: Any, upload: Uploader, vocab_size: int, *, is_raw: bool, force_top_k: int = 0) -> None:
        self._ops = ops
        self._upload = upload
        self._vocab_size = vocab_size
        self._is_raw = is_raw
        self._force_top_k = force_top_k

    def of(self, wanted: PromptRows, parameters: NDArray[Any], row_logits: RowLogits) -> TokenLogprobs:
        """Queue the work. parameters: [N] records of `PARAMETERS`."""
        found = []
        for part in slabs(wanted.rows.size, self._vocab_size, min(SLAB_ELEMENTS, MAX_SLAB_ROWS * self._vocab_size)):
            logits = row_logits(self._upload(wanted.rows[part]))
            logprobs = self._logprobs(logits, parameters[wanted.sequences[part]])
            found.append(token_logprobs(self._ops, logprobs, self._upload(wanted.token_ids[part]), wanted.count))
        return TokenLogprobs(*(torch.cat(parts) for parts in zip(*found, strict=True)))

    def _logprobs(self, logits: torch.Tensor, parameters: NDArray[Any]) -> torch.Tensor:
        """float32 [n, V]; parameters: [n]."""
        logprobs: torch.Tensor
        if self._is_raw:
            logprobs = self._ops.log_softmax(logits)
            return logprobs
        if self._force_top_k:
            self._ops.keep_largest(logits, self._force_top_k)
        logprobs = self._ops.filtered_logprobs(logits, *filter_tensors(self._upload, parameters))
        return logprobs
