"""What a model says after a text is on record, in all of its bits, whatever step computed it.

Letters: N sequences, T query tokens, S sampled rows.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

from thalweg.engine.device import Forwarded, Prepared
from thalweg.engine.inputs import DecodeInputs, StepInputs
from thalweg.engine.model_device import ModelDevice
from thalweg.interfaces import StepPlan

NOBODY = 0
"""The state slot of rows that belong to no sequence."""


@dataclass
class Witness:
    """The logits that followed every text in all engines watched so far."""

    logits: dict[bytes, bytes] = field(default_factory=dict)
    """Hash of a row by the token ids before it."""
    differing: list[list[int]] = field(default_factory=list)
    """Texts after which a row had other bits than the first time."""
    num_rows: int = 0
    """Rows of the engine watched last; `num_again` of them were known."""
    num_again: int = 0
    num_decode_rows: set[int] = field(default_factory=set)
    """Query rows of its decode steps, padding included."""

    @contextmanager
    def watching(self, *, padded_to: int = 0) -> Iterator[None]:
        """Watch the one engine that is run in this context.

        padded_to: rows of nobody are added to every decode step of fewer sequences, as a graph of that size has them;
        every second one is marked as a placeholder, the others run on the null block and the null slot.
        """
        self.num_rows = self.num_again = 0
        self.num_decode_rows = set()
        texts: dict[int, list[int]] = {}
        padded: dict[int, Prepared] = {}
        copy, prepare, forward = ModelDevice.copy, ModelDevice.prepare, ModelDevice.forward

        def watched_copy(device: ModelDevice, plan: StepPlan) -> None:
            for source, destination in plan.state_copies.tolist():
                texts[destination] = list(texts[source])
            copy(device, plan)

        def padding_prepare(device: ModelDevice, inputs: StepInputs, left: Any, *, redistribute: bool) -> Prepared:
            prepared = prepare(device, inputs, left, redistribute=redistribute)
            if isinstance(inputs, DecodeInputs) and len(inputs.query_lengths) < padded_to:
                assert not redistribute
                more = with_padding(inputs, padded_to, device.model.config.vocab_size)
                padded[id(prepared)] = prepare(device, more, left, redistribute=False)
            return prepared

        def watched_forward(device: ModelDevice, prepared: Prepared) -> Forwarded:
            larger = padded.pop(id(prepared), None)
            forwarded = forward(device, prepared if larger is None else larger)
            if larger is not None:
                num_rows = prepared.batch.token_ids.shape[0]
                forwarded = replace(forwarded, prepared=prepared, logits=forwarded.logits[:num_rows])
            if prepared.selected_rows is None:
                self.num_decode_rows.add((prepared if larger is None else larger).batch.token_ids.shape[0])
            self._record(texts, forwarded)
            return forwarded

        with (
            patch.object(ModelDevice, "copy", watched_copy),
            patch.object(ModelDevice, "prepare", padding_prepare),
            patch.object(ModelDevice, "forward", watched_forward),
        ):
            yield

    def _record(self, texts: dict[int, list[int]], forwarded: Forwarded) -> None:
        prepared = forwarded.prepared
        slots = torch.repeat_interleave(prepared.state_slots.long(), prepared.query_lengths.long()).tolist()
        tokens, positions = prepared.batch.token_ids.tolist(), prepared.batch.positions.tolist()
        before: list[list[int]] = []
        for slot, token, position in zip(slots, tokens, positions, strict=True):
            text = texts.setdefault(slot, [])
            assert slot == NOBODY or len(text) >= position, "a token whose past was never computed"
            texts[slot] = [*text[:position], token]
            before.append(texts[slot])
        chosen = range(len(before)) if prepared.selected_rows is None else prepared.selected_rows.tolist()
        for row, logits in zip(chosen, forwarded.logits.numpy(), strict=True):
            if slots[row] != NOBODY:
                self._compare(before[row], hashlib.blake2b(logits.tobytes(), digest_size=16).digest())

    def _compare(self, text: list[int], logits: bytes) -> None:
        key = np.array(text, np.int32).tobytes()
        self.num_rows += 1
        self.num_again += key in self.logits
        if self.logits.setdefault(key, logits) != logits:
            self.differing.append(text)


def with_padding(inputs: DecodeInputs, num_sequences: int, vocab_size: int) -> DecodeInputs:
    """The inputs with rows of nobody behind them: one each of so many more sequences."""
    count = num_sequences - len(inputs.query_lengths)
    ones, zeros = np.ones(count, np.int32), np.zeros(count, np.int32)

    def joined(mine: Any, theirs: Any) -> Any:
        return np.concatenate((mine, theirs.astype(mine.dtype)))

    def rows_like(mine: Any) -> Any:
        return np.arange(count * mine.shape[1]).reshape(count, -1) % vocab_size

    return replace(
        inputs,
        num_rows=inputs.num_rows + count,
        query_lengths=joined(inputs.query_lengths, ones),
        base_lengths=joined(inputs.base_lengths, zeros),
        previous_rows=joined(inputs.previous_rows, -ones),
        state_slots=joined(inputs.state_slots, zeros),
        block_offsets=joined(inputs.block_offsets, inputs.block_offsets[-1] + np.arange(1, 1 + count)),
        block_ids=joined(inputs.block_ids, zeros),
        token_ids=joined(inputs.token_ids, rows_like(inputs.token_ids)),
        ngram_ids=joined(inputs.ngram_ids, np.zeros((count, inputs.ngram_ids.shape[1]))),
        windows=joined(inputs.windows, np.zeros((count, inputs.windows.shape[1]))),
        is_placeholder=joined(inputs.is_placeholder, np.arange(count) % 2 == 0),
    )
