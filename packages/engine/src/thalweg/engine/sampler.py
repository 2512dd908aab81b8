"""From logits to tokens, on the device.

A row's token depends on nothing but its logits, its request's past and its own parameters, seed and position, so it is
the same alone and in any batch. Letters: S sampled rows, X siblings, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from thalweg.engine.drawn_rows import drawn_rows, filter_tensors
from thalweg.engine.grammar_masks import GrammarMasks
from thalweg.engine.row_faults import RowFaults
from thalweg.engine.sampler_inputs import ROW_POSITION_STRIDE, SamplerInputs
from thalweg.engine.slabs import SIBLING_ELEMENTS, slabs
from thalweg.engine.token_counts import TokenCounts
from thalweg.engine.upload import Uploader
from thalweg.interfaces import InvariantError


class Sampler:
    """Changes the logits as the requests ask, then draws: argmax (lowest id) when greedy, else through the filters.

    ops: bound kernel ops. counts: of tokens said before, for penalties; None = nobody is penalised. blacklist: token
    ids that are never drawn. force_top_k: only so many largest logits of a row may be drawn; 0 = all. is_coupled: a
    token is a function of its own index, not of the row and step that drew it. Needed to verify drafts by matching.
    """

    def __init__(
        self,
        ops: Any,
        upload: Uploader,
        *,
        counts: TokenCounts | None = None,
        blacklist: Sequence[int] = (),
        force_top_k: int = 0,
        is_coupled: bool = False,
    ) -> None:
        self._ops = ops
        self._upload = upload
        self._counts = counts
        self._blacklist = upload(np.array(blacklist, np.int64)) if blacklist else None
        self._force_top_k = force_top_k
        self._draw_tokens = ops.coupled_tokens if is_coupled else ops.sample_tokens
        self._stride = 1 if is_coupled else ROW_POSITION_STRIDE

    def clean(self, logits: torch.Tensor, inputs: SamplerInputs) -> RowFaults:
        """Make of logits float32 [S, V] what is drawn from; rows whose token will be meaningless.

        Those have NaN, infinity, or nothing that may be drawn; afterwards all numbers are usable. Forbidden tokens come
        first, then biases, penalties and grammars.
        """
        if logits.shape[0] != inputs.sequence_rows.size:
            raise InvariantError(f"{logits.shape[0]} rows of logits for {inputs.sequence_rows.size} sampled rows")
        edits, upload = inputs.edits, self._upload
        if self._blacklist is not None:
            logits.index_fill_(1, self._blacklist, -torch.inf)
        if edits.forbidden_rows.size:
            self._ops.forbid_tokens(logits, upload(edits.forbidden_rows), upload(edits.forbidden_ids))
        if edits.bias_rows.size:
            self._ops.add_biases(logits, upload(edits.bias_rows), upload(edits.bias_ids), upload(edits.biases))
        if inputs.penalties is not None:
            if self._counts is None:
                raise InvariantError("a request is penalised, but nobody counts its tokens")
            self._counts.penalise(logits, inputs.penalties)
        faults = self._mask(logits, inputs.masks)
        if self._force_top_k:
            self._ops.keep_largest(logits, self._force_top_k)
        return faults

    def draw(self, logits: torch.Tensor, inputs: SamplerInputs) -> torch.Tensor:
        """One token int32 [S] per row of clean logits float32 [S, V]."""
        drawn = drawn_rows(self._upload, inputs, inputs.sequence_rows, inputs.row_positions(self._stride))
        if drawn is None:
            best: torch.Tensor = self._ops.argmax_lowest(logits)
            return best
        token_ids = self._draw_tokens(drawn.part(logits), *drawn.filters, drawn.seeds, drawn.values)
        return drawn.among(lambda: self._ops.argmax_lowest(logits), token_ids)

    def draw_siblings(self, logits: torch.Tensor, inputs: SamplerInputs) -> torch.Tensor:
        """One token int32 [X] per sibling, from its parent's row of clean logits float32 [S, V], S = N."""
        siblings, upload = inputs.siblings, self._upload
        tokens = [torch.empty(0, dtype=torch.int32, device=logits.device)]
        for part in slabs(siblings.parents.size, logits.shape[1], SIBLING_ELEMENTS):
            parents = siblings.parents[part]
            filters = filter_tensors(upload, inputs.parameters[parents])
            seeds, positions = siblings.seeds[part], inputs.sample_positions[parents]
            tokens.append(self._draw_tokens(logits[upload(parents)], *filters, upload(seeds), upload(positions)))
        return torch.cat(tokens)

    def _mask(self, logits: torch.Tensor, masks: GrammarMasks | None) -> RowFaults:
        """Forbid what grammars do not allow, and make broken rows zeros."""
        if masks is None:
            return RowFaults(self._ops.clear_broken_rows(logits))
        upload, num_rows, masked = self._upload, logits.shape[0], masks.masked_rows
        broken = _has_no_largest(logits)
        self._ops.apply_token_bitmask(logits, upload.pinned(masks.bitmask), upload(masks.rows))
        if 3 * masked.size > num_rows:  # to gather the rows would read and write more than to look at all of them
            starved = _has_no_largest(logits) & ~broken
        else:
            rows = upload(masked)
            starved = torch.zeros_like(broken).index_copy_(0, rows, _has_no_largest(logits[rows]) & ~broken[rows])
        broken = broken | starved
        logits.masked_fill_(broken[:, None], 0.0)
        return RowFaults(broken, starved)


def _has_no_largest(logits: torch.Tensor) -> torch.Tensor:
    """bool [n] the largest logit of the row, of float32 [n, V], is not finite."""
    return ~torch.isfinite(logits.amax(dim=-1))
