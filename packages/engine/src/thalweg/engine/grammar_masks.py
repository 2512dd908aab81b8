"""Which tokens grammars allow in the rows of a step, worked out on the host while the model runs.

Letters: S sampled rows, B rows of the bitmask, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from thalweg.engine.constraint import Constraint
from thalweg.engine.step_rows import StepRows
from thalweg.interfaces import Backend, DraftWalk, InvariantError, MaskFiller
from thalweg.kernels.reference.bitmask import WORD_BITS


@dataclass(frozen=True, slots=True)
class GrammarMasks:
    """Masks for some rows of logits."""

    bitmask: torch.Tensor
    """int32 [B, words] in pinned host memory, bit i % 32 of word i // 32 for token i. Used again in the next step."""
    rows: NDArray[np.int64]
    """[B] the row of logits that each mask is for; -1 = none, and the mask means nothing."""

    @property
    def masked_rows(self) -> NDArray[np.int64]:
        """Rows of logits that have a mask, ascending."""
        return np.sort(self.rows[self.rows >= 0])


@dataclass(frozen=True, slots=True)
class BuiltMasks:
    """What grammars say about a step."""

    masks: GrammarMasks | None
    """None = every row is free."""
    failures: Mapping[int, str]
    """Sequence -> why its output cannot follow its grammar any further."""


class GrammarMaskBuilder:
    """Brings matchers up to date and has masks filled.

    filler: None = no output has a grammar. vocab_size: of the logits. The masks of a step live in one buffer, so they
    may be built only when the work of the step before has finished.
    """

    def __init__(self, backend: Backend, filler: MaskFiller | None, vocab_size: int) -> None:
        self._backend = backend
        self._filler = filler
        self._num_words = -(-vocab_size // WORD_BITS)
        self._buffer: torch.Tensor | None = None

    def build(self, step: StepRows, forced_ids: NDArray[np.int32] | None = None) -> BuiltMasks:
        """Masks of the rows whose output has a grammar.

        forced_ids: [S] what rows yield whatever is drawn, -1 = free. Where a grammar does not allow that, nothing is
        allowed. Raises InvariantError for a grammar without a filler.
        """
        found = _constrained(step)
        if not found:
            return BuiltMasks(None, {})
        if self._filler is None:
            raise InvariantError("an output has a grammar, and nothing that fills masks was given")
        walks, rows = _walks(step, found), _rows_of(step, found)
        buffer = self._rows(rows.size)
        bitmask = buffer.numpy()
        filled = self._filler.fill(walks, bitmask)
        for place, (_, constraint) in enumerate(found):
            if place not in filled.failures:
                constraint.num_seen += len(walks[place].token_ids)
        rows = np.where(filled.is_filled, rows, -1)
        if forced_ids is not None:
            _forbid_forced(bitmask, rows, forced_ids)
        failures = {found[place][0]: message for place, message in filled.failures.items()}
        return BuiltMasks(GrammarMasks(buffer, rows) if filled.is_filled.any() else None, failures)

    def _rows(self, count: int) -> torch.Tensor:
        """int32 [count, words] of the buffer."""
        if self._buffer is None or self._buffer.shape[0] < count:
            capacity = 1 << (count - 1).bit_length()
            self._buffer = self._backend.empty((capacity, self._num_words), torch.int32, pinned=True)
        return self._buffer[:count]


def _constrained(step: StepRows) -> list[tuple[int, Constraint]]:
    """Sequences that make output under a grammar, ascending."""
    return [
        (index, sequence.constraint)
        for index, (sequence, makes_output) in enumerate(zip(step.sequences, step.makes_output.tolist(), strict=True))
        if makes_output and sequence.constraint is not None
    ]


def _walks(step: StepRows, found: Sequence[tuple[int, Constraint]]) -> list[DraftWalk]:
    """Of each sequence the tokens that it has made since its last masks, then the drafts that its rows feed."""
    walks, first_row = [], 0
    num_rows, drafts = step.num_rows.tolist(), step.drafts.tolist()
    for index, constraint in found:
        walks.append(
            DraftWalk(
                matcher=constraint.matcher,
                token_ids=constraint.unseen(step.sequences[index].output_token_ids),
                draft_ids=drafts[index][: num_rows[index] - 1],
                first_row=first_row,
            )
        )
        first_row += num_rows[index]
    return walks


def _rows_of(step: StepRows, found: Sequence[tuple[int, Constraint]]) -> NDArray[np.int64]:
    """[B] rows of logits that belong to these sequences, one sequence after the other."""
    is_found = np.zeros(step.num_rows.size, np.bool_)
    is_found[[index for index, _ in found]] = True
    return np.flatnonzero(is_found[step.sequence_rows])


def _forbid_forced(bitmask: NDArray[np.int32], rows: NDArray[np.int64], forced_ids: NDArray[np.int32]) -> None:
    """Empty the masks int32 [B, words] that do not allow what their rows int64 [B] are forced to yield."""
    forced = np.where(rows >= 0, forced_ids[rows], -1)
    places = np.flatnonzero(forced >= 0)
    ids = forced[places]
    is_allowed = bitmask[places, ids // WORD_BITS] >> (ids % WORD_BITS) & 1
    bitmask[places[is_allowed == 0]] = 0
