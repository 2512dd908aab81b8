"""What the sampler needs to know about the rows of a step, in numpy.

Letters: N sequences, S sampled rows (one per sequence of a prefill, one per query token of a decode step), X siblings,
outputs that get their first token from the logits of another one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from thalweg.engine.grammar_masks import GrammarMasks
from thalweg.engine.logit_edits import LogitEdits, build_logit_edits
from thalweg.engine.prompt_rows import PromptRows, build_prompt_rows
from thalweg.engine.sampling_row import SequenceToSample
from thalweg.engine.step_rows import StepRows
from thalweg.engine.token_counts import PenaltyRows, SlotOwners, build_penalty_rows
from thalweg.interfaces import StepCorrection, StepPlan
from thalweg.kernels.reference.filters import GREEDY_BELOW

ROW_POSITION_STRIDE = 10000019
"""Later rows of a step use random streams far from those of any first row, unless draws are coupled."""


@dataclass(frozen=True, slots=True)
class Siblings:
    """Outputs that share the prompt of a sequence, and differ from its own output in their seeds alone."""

    parents: NDArray[np.int64]
    """[X] sequences, ascending."""
    seeds: NDArray[np.uint64]
    """[X]"""

    @staticmethod
    def none() -> Siblings:
        return Siblings(np.zeros(0, np.int64), np.zeros(0, np.uint64))


@dataclass(frozen=True, slots=True)
class SamplerInputs:
    """Rows to sample and what their requests ask for."""

    sequence_ids: NDArray[np.int64]
    """[N]"""
    has_drafts: bool
    """Whether rows after the first of a sequence judge drafts, and new ones are wanted."""
    sequence_rows: NDArray[np.int64]
    """[S] the sequence of each sampled row."""
    first_rows: NDArray[np.int64]
    """[N] first sampled row of each sequence."""
    parameters: NDArray[Any]
    """[N] records of `thalweg.engine.sampling_row.PARAMETERS`."""
    sample_positions: NDArray[np.int64]
    """[N] absolute index of the token that the sequence's first sampled row generates."""
    makes_output: NDArray[np.bool_]
    """[N] false for chunks that do not end their prompt; what they draw goes nowhere."""
    draft_read_slots: NDArray[np.int32]
    """[N] where the distributions of the drafts under judgement are kept; 0 = they have none."""
    draft_write_slots: NDArray[np.int32]
    """[N] where those of the next drafts go; 0 = nowhere."""
    edits: LogitEdits = field(default_factory=LogitEdits.none)
    """Tokens that are forbidden or shifted."""
    penalties: PenaltyRows | None = None
    forced_ids: NDArray[np.int32] | None = None
    """[S] what the row yields whatever is drawn; -1 = free. None = all are."""
    siblings: Siblings = field(default_factory=Siblings.none)
    prompt: PromptRows | None = None
    """Rows whose logits tell how likely the prompt was."""
    masks: GrammarMasks | None = None
    """What grammars allow; None = everything."""

    @property
    def temperatures(self) -> NDArray[np.float32]:
        """[N]"""
        return self._column("temperature")

    @property
    def eos_token_ids(self) -> NDArray[np.int32]:
        """[N] -1 = ignored."""
        return self._column("eos_token_id")

    @property
    def num_logprobs(self) -> NDArray[np.int32]:
        """[N] alternatives per output token; -1 = nothing is reported, nor of chunks that do not end their prompt."""
        return np.where(self.makes_output, self._column("num_logprobs"), -1)

    @property
    def is_greedy(self) -> NDArray[np.bool_]:
        """[N] sequences that take the argmax."""
        greedy: NDArray[np.bool_] = self.temperatures < GREEDY_BELOW
        return greedy

    @property
    def row_places(self) -> NDArray[np.int64]:
        """[S] how many rows of its sequence come before a row."""
        places: NDArray[np.int64] = np.arange(self.sequence_rows.size) - self.first_rows[self.sequence_rows]
        return places

    @property
    def num_rows(self) -> NDArray[np.int64]:
        """[N] sampled rows of each sequence."""
        return np.diff(self.first_rows, append=self.sequence_rows.size)

    def row_positions(self, stride: int = ROW_POSITION_STRIDE) -> NDArray[np.int64]:
        """[S] position of each sampled row in its sequence's random stream; `stride` lies between rows."""
        positions: NDArray[np.int64] = self.sample_positions[self.sequence_rows] + stride * self.row_places
        return positions

    def _column(self, name: str) -> NDArray[Any]:
        column: NDArray[Any] = self.parameters[name]
        return column


def build_sampler_inputs(
    plan: StepPlan,
    sequences: Sequence[SequenceToSample],
    correction: StepCorrection | None = None,
    owners: SlotOwners | None = None,
) -> SamplerInputs:
    """Sampler inputs of a plan; `sequences` are its rows in plan order.

    correction: replaces the lengths of an asynchronous decode step, which the plan could only guess. Every chunk of a
    prefill samples its last row; what a chunk that does not end its prompt yields is dropped later. owners: whose token
    counts the device keeps, brought up to date; None = nobody's so far.
    """
    step = StepRows.of(plan, sequences, correction)
    lengths: StepPlan | StepCorrection = plan if correction is None else correction
    contexts = step.context_lengths
    return SamplerInputs(
        sequence_ids=plan.sequence_ids,
        has_drafts=plan.draft_token_ids.shape[1] > 0,
        sequence_rows=step.sequence_rows,
        first_rows=step.first_rows,
        parameters=step.parameters,
        sample_positions=contexts if step.is_prefill else contexts - step.query_lengths + 1,
        makes_output=step.makes_output,
        draft_read_slots=lengths.draft_read_slots,
        draft_write_slots=lengths.draft_write_slots,
        edits=build_logit_edits(step),
        penalties=build_penalty_rows(step, SlotOwners() if owners is None else owners),
        forced_ids=_forced_ids(step),
        siblings=_siblings(step),
        prompt=build_prompt_rows(step),
    )


def _forced_ids(step: StepRows) -> NDArray[np.int32] | None:
    """Row j makes output token `num_outputs + j`."""
    chosen = step.with_option("has_forced_ids")
    if not chosen:
        return None
    forced_ids = np.full(int(step.num_rows.sum()), -1, np.int32)
    for index in chosen:
        first, count, start = int(step.first_rows[index]), int(step.num_rows[index]), int(step.num_outputs[index])
        window = step.sequences[index].row.forced_ids[start : start + count]
        forced_ids[first : first + window.size] = window
    return forced_ids


def _siblings(step: StepRows) -> Siblings:
    """Those of prompts that end in this step."""
    if not step.is_prefill:
        return Siblings.none()
    found = [
        (index, sibling.row.seed)
        for index in np.flatnonzero(step.makes_output).tolist()
        for sibling in step.sequences[index].siblings
    ]
    parents, seeds = zip(*found, strict=True) if found else ((), ())
    return Siblings(np.array(parents, np.int64), np.array(seeds, np.uint64))
