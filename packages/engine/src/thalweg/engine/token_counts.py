"""How often every token was said, kept on the device, for penalties on what was said before.

A step that is launched while the one before it still runs must count tokens that the host has not seen, so the counts
are brought forward on the device, too. Letters: N sequences, S sampled rows, R penalised ones, M sequences to be
counted afresh, G draft length, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from thalweg.engine.step_rows import StepRows
from thalweg.engine.upload import Uploader
from thalweg.interfaces import Backend, InvariantError

_COUNT_BYTES, _MARK_BYTES = 4, 1


def token_count_bytes(vocab_size: int) -> int:
    """Memory that the counts of one state slot take."""
    return vocab_size * (_COUNT_BYTES + _MARK_BYTES)


@dataclass(frozen=True, slots=True)
class PenaltyRows:
    """The penalised rows of a step, and what must be true of the table before and after it."""

    rows: NDArray[np.int64]
    """[R] ascending."""
    slots: NDArray[np.int32]
    """[R] whose counts they use."""
    step_ids: NDArray[np.int32]
    """[R, G] drafts of the step that come before a row, then -1."""
    repetition: NDArray[np.float32]
    """[R]"""
    presence: NDArray[np.float32]
    """[R]"""
    frequency: NDArray[np.float32]
    """[R]"""
    reset_slots: NDArray[np.int32]
    """[M] all different: counts of another sequence, or of a text that is not this one."""
    prompt_ids: NDArray[np.int32]
    """[P] tokens of their prompts."""
    prompt_rows: NDArray[np.int64]
    """[P] which of the M they belong to."""
    output_ids: NDArray[np.int32]
    """[Q] tokens of their outputs."""
    output_rows: NDArray[np.int64]
    """[Q]"""
    count_slots: NDArray[np.int32]
    """[N] where the tokens that the step makes are counted; 0 = nowhere."""


class SlotOwners:
    """Whose counts each state slot holds once everything that is queued has run."""

    def __init__(self) -> None:
        self._keys: dict[int, int] = {}

    def take(self, slot: int, key: int) -> bool:
        """The slot is this output's from now on; whether it was already. key: -1 = an output that has no name."""
        was_mine = key >= 0 and self._keys.get(slot) == key
        self._keys[slot] = key
        return was_mine


def build_penalty_rows(step: StepRows, owners: SlotOwners) -> PenaltyRows | None:
    """The penalised rows of a step; None if there are none.

    The end of a prompt counts afresh: it is where a sequence begins, and where it begins again after a preemption.
    """
    chosen = step.with_option("has_penalties")
    if not chosen:
        return None
    is_chosen = np.zeros(step.num_rows.size, np.bool_)
    is_chosen[chosen] = True
    stale = [index for index in chosen if _is_stale(step, owners, index)]
    sequence_rows = step.sequence_rows
    rows = np.flatnonzero(is_chosen[sequence_rows])
    sequences = sequence_rows[rows]
    places = rows - step.first_rows[sequences]
    is_before = np.arange(step.drafts.shape[1]) < places[:, None]
    parameters = step.parameters[sequences]
    prompts = [step.sequences[index].prompt_token_ids for index in stale]
    outputs = [step.sequences[index].output_token_ids for index in stale]
    prompt_ids, prompt_rows = _flat(prompts)
    output_ids, output_rows = _flat(outputs)
    return PenaltyRows(
        rows=rows,
        slots=step.state_slots[sequences],
        step_ids=np.where(is_before, step.drafts[sequences], -1).astype(np.int32),
        repetition=parameters["repetition_penalty"],
        presence=parameters["presence_penalty"],
        frequency=parameters["frequency_penalty"],
        reset_slots=step.state_slots[stale],
        prompt_ids=prompt_ids,
        prompt_rows=prompt_rows,
        output_ids=output_ids,
        output_rows=output_rows,
        count_slots=np.where(is_chosen, step.state_slots, 0).astype(np.int32),
    )


def _is_stale(step: StepRows, owners: SlotOwners, index: int) -> bool:
    was_mine = owners.take(int(step.state_slots[index]), step.sequences[index].key)
    return step.is_prefill or not was_mine


def _flat(lists: Sequence[Sequence[int]]) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """All ids, and the list that each comes from."""
    lengths = [len(ids) for ids in lists]
    parts = [np.zeros(0, np.int32), *(np.array(ids, np.int32) for ids in lists)]
    return np.concatenate(parts), np.repeat(np.arange(len(lists)), lengths)


class TokenCounts:
    """Counts of the outputs and marks of the prompts, by state slot; slot 0 is nobody's.

    ops: bound kernel ops; `reset_token_counts`, `apply_penalties` and `count_tokens` are used. num_slots: state slots
    of the scheduler, slot 0 included. The memory is taken when the first penalised request is sampled.
    """

    def __init__(self, backend: Backend, ops: Any, upload: Uploader, num_slots: int, vocab_size: int) -> None:
        self._backend = backend
        self._ops = ops
        self._upload = upload
        self._shape = num_slots, vocab_size
        self._table: tuple[torch.Tensor, torch.Tensor] | None = None

    def penalise(self, logits: torch.Tensor, rows: PenaltyRows) -> None:
        """Penalise logits float32 [S, V] in place, by counts that are put right first."""
        counts, in_prompt = self._up_to_date(rows)
        upload = self._upload
        is_all = rows.rows.size == logits.shape[0]
        index = None if is_all else upload(rows.rows)
        penalised = logits if index is None else logits[index]
        self._ops.apply_penalties(
            penalised,
            counts,
            in_prompt,
            upload(rows.slots),
            upload(rows.step_ids),
            upload(rows.repetition),
            upload(rows.presence),
            upload(rows.frequency),
        )
        if index is not None:
            logits.index_copy_(0, index, penalised)

    def count(self, rows: PenaltyRows, accepted_ids: torch.Tensor, token_ids: torch.Tensor) -> None:
        """Count what the step made: accepted drafts int32 [N, G], -1 = none, and newest tokens int32 [N]."""
        counts, _ = self._tables()
        made = torch.cat((accepted_ids, token_ids[:, None]), dim=1)
        self._ops.count_tokens(counts, self._upload(rows.count_slots), made)

    def _up_to_date(self, rows: PenaltyRows) -> tuple[torch.Tensor, torch.Tensor]:
        counts, in_prompt = self._tables()
        if int(rows.slots.max()) >= self._shape[0]:
            raise InvariantError(f"state slot {rows.slots.max()} has no token counts; there are {self._shape[0]}")
        if rows.reset_slots.size:
            upload = self._upload
            self._ops.reset_token_counts(
                counts,
                in_prompt,
                upload(rows.reset_slots),
                upload(rows.prompt_ids),
                upload(rows.prompt_rows),
                upload(rows.output_ids),
                upload(rows.output_rows),
            )
        return counts, in_prompt

    def _tables(self) -> tuple[torch.Tensor, torch.Tensor]:
        if self._table is None:
            counts = self._backend.empty(self._shape, torch.int32)
            in_prompt = self._backend.empty(self._shape, torch.bool)
            self._table = counts.zero_(), in_prompt.zero_()
        return self._table
