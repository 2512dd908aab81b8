"""Collects what a result did to the rows of a step."""

from __future__ import annotations

import numpy as np

from thalweg.interfaces import SequenceStatus, StepOutcome
from thalweg.scheduler.reference.sequence import Confidences, Sequence


class OutcomeBuilder:
    """Rows are set in plan order; token-less records follow them."""

    def __init__(self, num_rows: int, draft_length: int) -> None:
        self._tokens: list[int] = []
        self._offsets = [0]
        self._num_output = np.zeros(num_rows, np.int32)
        self._reasons = np.zeros(num_rows, np.int8)
        self._num_verified = np.zeros(num_rows, np.int32)
        self._num_accepted = np.zeros(num_rows, np.int32)
        self._confidences = np.full((num_rows, draft_length), np.nan, np.float32)
        self._closed: list[Sequence] = []
        self._completed: list[Sequence] = []

    def set_row(self, index: int, sequence: Sequence, tokens: list[int]) -> None:
        self._tokens += tokens
        self._offsets.append(len(self._tokens))
        self._num_output[index] = sequence.num_output
        # A row found finished was ended by somebody else: its record is owed later.
        ended_here = tokens or sequence.status == SequenceStatus.FINISHED_STRUCTURED_FAILED
        if sequence.is_finished and ended_here and not sequence.has_final_record:
            self._reasons[index] = sequence.status
            sequence.has_final_record = True

    def set_verification(self, index: int, verify_length: int, num_accepted: int, confidences: Confidences) -> None:
        self._num_verified[index] = verify_length
        self._num_accepted[index] = num_accepted
        if confidences is not None:
            self._confidences[index] = confidences

    def complete(self, sequence: Sequence) -> None:
        """The prompt of a prefill-only engine is ready for hand-over."""
        self._completed.append(sequence)

    def close(self, sequence: Sequence) -> None:
        """The request ends without a token."""
        sequence.has_final_record = True
        self._closed.append(sequence)

    def build(self) -> StepOutcome:
        return StepOutcome(
            token_offsets=np.array(self._offsets, np.int32),
            token_ids=np.array(self._tokens, np.int32),
            num_output_tokens=self._num_output,
            finish_reasons=self._reasons,
            num_verified=self._num_verified,
            num_accepted=self._num_accepted,
            verified_confidences=self._confidences,
            closed_ids=np.array([sequence.sequence_id for sequence in self._closed], np.int64),
            closed_reasons=np.array([sequence.status for sequence in self._closed], np.int8),
            closed_num_output_tokens=np.array([sequence.num_output for sequence in self._closed], np.int32),
            completed_ids=np.array([sequence.sequence_id for sequence in self._completed], np.int64),
        )
