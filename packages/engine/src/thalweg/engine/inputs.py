"""From a step plan to what the host ships to the device: numpy arrays, per token for prompts, per sequence for decode.

A decode step may be launched before the host knows the tokens of the step before it, so its rows are completed on the
device (`thalweg.engine.model_inputs`). Letters: N sequences, T query tokens, G draft length, R look-back of a plan.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from thalweg.cache import (
    ConsumerArrays,
    ConsumerReplay,
    MetadataShape,
    PrefillArrays,
    build_consumer_metadata,
    build_prefill_metadata,
)
from thalweg.engine.graphs import size_for
from thalweg.engine.token_rows import CompressedVocabulary, TokenRows, build_token_rows
from thalweg.interfaces import StepKind, StepPlan

PLACEHOLDER_SEQUENCE = -1
"""Sequence id of a padding row: it runs through the model and leaves no trace."""


@dataclass(frozen=True, slots=True)
class PrefillInputs:
    """The rows of a prefill step and where they read and write; all of it known to the host."""

    rows: TokenRows
    metadata: PrefillArrays
    query_lengths: NDArray[np.int32]
    """[N]"""
    context_lengths: NDArray[np.int32]
    """[N]"""
    consumers: ConsumerArrays | None
    """What the consumer layers run over under bounded replay; None = what all others do."""


@dataclass(frozen=True, slots=True)
class DecodeInputs:
    """The sequences of a decode step as the host knows them."""

    num_rows: int
    """T; stays what it is when the device shares the rows out anew."""
    max_blocks: int
    """Most blocks that a sequence owns."""
    query_lengths: NDArray[np.int32]
    """[N]"""
    base_lengths: NDArray[np.int32]
    """[N] context before the step, if the step in flight commits everything it was planned to."""
    previous_rows: NDArray[np.int32]
    """[N] row of the sequence in the step in flight, -1 = none: all of its tokens are known."""
    state_slots: NDArray[np.int32]
    """[N]"""
    block_offsets: NDArray[np.int32]
    """[N+1]"""
    block_ids: NDArray[np.int32]
    """[sum of blocks]"""
    token_ids: NDArray[np.int32]
    """[N, 1+G] newest token and drafts; meaningless in rows with a previous row."""
    ngram_ids: NDArray[np.int64]
    """[N, 1+G] their compressed ids."""
    windows: NDArray[np.int64]
    """[N, G + look-back] compressed ids before the step: with a previous row the committed look-back, then the drafts
    in flight; otherwise the look-back without the newest token, then unused columns."""
    is_placeholder: NDArray[np.bool_]
    """[N]"""
    num_padding: int = 0
    """Placeholder rows at the end, one per sequence, that were added to reach a size; nobody samples them."""


StepInputs = PrefillInputs | DecodeInputs

_BY_SEQUENCE = (
    "query_lengths",
    "base_lengths",
    "previous_rows",
    "state_slots",
    "block_ids",
    "token_ids",
    "ngram_ids",
    "windows",
)
"""Fields of `DecodeInputs` that grow by what a sequence of one token has."""


class InputBuilder:
    """Builds the inputs of any plan of one deployment.

    shape: the lengths of the cache. sizes: ascending numbers of query tokens; given, decode steps are padded to them.
    replay: how much of their prompts the consumer layers compute; None = all.
    """

    def __init__(
        self,
        shape: MetadataShape,
        vocabulary: CompressedVocabulary,
        sizes: Sequence[int] = (),
        replay: ConsumerReplay | None = None,
    ) -> None:
        self._shape = shape
        self._replay = replay
        self._sizes = sizes
        self._vocabulary = vocabulary

    def build(self, plan: StepPlan) -> StepInputs:
        """Inputs of a plan with at least one row."""
        if plan.kind is StepKind.PREFILL:
            return self._prefill(plan)
        inputs = self._decode(plan)
        return self.padded(inputs, size_for(self._sizes, inputs.num_rows)) if self._sizes else inputs

    def padded(self, inputs: DecodeInputs, num_rows: int) -> DecodeInputs:
        """The same rows, and placeholders behind them up to that number of query tokens."""
        added = num_rows - inputs.num_rows
        if added == 0:
            return inputs
        filler = self.dummy(added, inputs.token_ids.shape[1] - 1, vocab_size=1)
        ends = inputs.block_offsets[-1] + filler.block_offsets[1:]
        return replace(
            inputs,
            num_rows=num_rows,
            max_blocks=max(inputs.max_blocks, 1),
            block_offsets=np.concatenate((inputs.block_offsets, ends), dtype=np.int32),
            is_placeholder=np.concatenate((inputs.is_placeholder, ~filler.is_placeholder)),
            num_padding=added,
            **{name: np.concatenate((getattr(inputs, name), getattr(filler, name))) for name in _BY_SEQUENCE},
        )

    def dummy(self, num_rows: int, draft_length: int, vocab_size: int) -> DecodeInputs:
        """Decode rows of so many sequences of one token each, on the null block and the null slot, which nobody reads.

        Their tokens differ, so that they take different experts.
        """
        ones, zeros = np.ones(num_rows, np.int32), np.zeros(num_rows, np.int32)
        token_ids = np.arange(num_rows * (1 + draft_length), dtype=np.int32).reshape(num_rows, -1) % vocab_size
        look_back = self._vocabulary.max_ngram_size - 1
        return DecodeInputs(
            num_rows=num_rows,
            max_blocks=1,
            query_lengths=ones,
            base_lengths=zeros,
            previous_rows=-ones,
            state_slots=zeros,
            block_offsets=np.arange(num_rows + 1, dtype=np.int32),
            block_ids=zeros,
            token_ids=token_ids,
            ngram_ids=self._vocabulary.compress(token_ids),
            windows=self._vocabulary.compress(np.full((num_rows, draft_length + look_back), -1, np.int32)),
            is_placeholder=np.zeros(num_rows, np.bool_),
        )

    def _prefill(self, plan: StepPlan) -> PrefillInputs:
        metadata = build_prefill_metadata(
            self._shape,
            plan.query_lengths,
            plan.context_lengths,
            plan.state_slots,
            plan.block_offsets,
            plan.block_ids,
            plan.window_valid_start,
        )
        rows = build_token_rows(plan, self._vocabulary)
        consumers = None
        if self._replay is not None:
            consumers = build_consumer_metadata(
                self._shape, metadata, self._replay, plan.committed_lengths, plan.window_valid_start
            )
        return PrefillInputs(rows, metadata, plan.query_lengths, plan.context_lengths, consumers)

    def _decode(self, plan: StepPlan) -> DecodeInputs:
        token_ids = np.concatenate((plan.tail_token_ids[:, -1:], plan.draft_token_ids), axis=1)
        look_back = self._vocabulary.max_ngram_size - 1
        history = plan.tail_token_ids[:, plan.tail_token_ids.shape[1] - 1 - look_back :]
        has_previous = (plan.previous_rows >= 0)[:, None]
        windows = np.where(
            has_previous,
            np.concatenate((history[:, 1:], plan.draft_token_ids), axis=1),
            np.concatenate((history[:, :-1], np.full_like(plan.draft_token_ids, -1)), axis=1),
        )
        return DecodeInputs(
            num_rows=int(plan.query_lengths.sum()),
            max_blocks=int(np.diff(plan.block_offsets).max()),
            query_lengths=plan.query_lengths,
            base_lengths=plan.context_lengths - plan.query_lengths,
            previous_rows=plan.previous_rows,
            state_slots=plan.state_slots,
            block_offsets=plan.block_offsets,
            block_ids=plan.block_ids,
            token_ids=token_ids,
            ngram_ids=self._vocabulary.compress(token_ids),
            windows=self._vocabulary.compress(windows),
            is_placeholder=plan.sequence_ids == PLACEHOLDER_SEQUENCE,
        )
