"""What became of every request: its tokens, its one final record, and whether both are right."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from scheduler_testing.device import Launched
from scheduler_testing.oracle import Stream
from scheduler_testing.workload import Workload

from thalweg.interfaces import SequenceStatus, StepOutcome


@dataclass
class Entry:
    """One sequence as its user sees it."""

    key: str
    stream: Stream
    tokens: list[int]
    prompt_length: int
    first_length: int
    """Length at which it came here: more than the prompt for one that was loaded or forked."""
    max_tokens: int
    ignore_eos: bool
    is_structured: bool
    fails_at: int | None
    final: SequenceStatus | None = None
    is_completed: bool = False
    """Prefill-only engine: its prompt is ready to be handed over."""
    is_handed_over: bool = False
    is_aborted: bool = False
    is_forked: bool = False

    @property
    def num_output(self) -> int:
        return len(self.tokens) - self.prompt_length

    @property
    def has_failed(self) -> bool:
        """Its grammar gives up."""
        return self.fails_at is not None and self.num_output >= self.fails_at

    @property
    def is_waiting_for_hand_over(self) -> bool:
        return self.is_completed and self.final is None and not self.is_handed_over

    @property
    def output(self) -> list[int]:
        return self.tokens[self.prompt_length :]


@dataclass
class Ledger:
    """All sequences of one rank, by id."""

    workload: Workload
    entries: dict[int, Entry] = field(default_factory=dict)
    checkpoints: dict[int, list[int]] = field(default_factory=dict)
    """Positions at which a chunk has to end, by sequence."""

    def unfinished(self) -> list[int]:
        return [
            sequence_id
            for sequence_id, entry in self.entries.items()
            if entry.final is None and not entry.is_handed_over
        ]

    def record(self, launched: Launched, outcome: StepOutcome) -> None:
        """Take the tokens and final records of a step; each token must be the one that the stream holds there."""
        for row, sequence_id in enumerate(launched.plan.sequence_ids.tolist()):
            self._record_row(launched, outcome, row, self.entries[sequence_id])
        closed = zip(outcome.closed_ids, outcome.closed_reasons, outcome.closed_num_output_tokens, strict=True)
        for sequence_id, reason, num_output in closed:
            entry = self.entries[int(sequence_id)]
            assert num_output == entry.num_output, f"sequence {sequence_id}"
            self._end(entry, SequenceStatus(int(reason)))
        for sequence_id in outcome.completed_ids.tolist():
            entry = self.entries[sequence_id]
            assert self.workload.is_prompt_engine
            assert not entry.is_completed
            assert entry.final is None
            entry.is_completed = True

    def _record_row(self, launched: Launched, outcome: StepOutcome, row: int, entry: Entry) -> None:
        new = outcome.token_ids[outcome.token_offsets[row] : outcome.token_offsets[row + 1]].tolist()
        start = len(entry.tokens)
        assert new == entry.stream.tokens(start, start + len(new)), f"row {row}"
        assert not (new and (entry.final is not None or entry.is_aborted)), f"row {row}: a token after the end"
        entry.tokens += new
        assert outcome.num_output_tokens[row] == entry.num_output
        if outcome.finish_reasons[row]:
            self._end(entry, SequenceStatus(int(outcome.finish_reasons[row])))
        self._check_verification(launched, outcome, row, len(new))

    def _check_verification(self, launched: Launched, outcome: StepOutcome, row: int, num_tokens: int) -> None:
        verified, accepted = int(outcome.num_verified[row]), int(outcome.num_accepted[row])
        confidences = outcome.verified_confidences[row]
        if not num_tokens:
            assert (verified, accepted) == (0, 0), f"row {row}"
            return
        num_accepted = int(launched.num_accepted[row])
        query_length = int(launched.query_lengths[row]) if launched.is_decode else 1
        assert (verified, accepted) == (query_length, num_accepted + 1), f"row {row}"
        assert num_tokens <= num_accepted + 1
        expected = launched.verified[row]
        if expected is None:
            assert np.isnan(confidences).all(), f"row {row}: confidences nobody knew"
        else:
            assert np.array_equal(confidences, expected), f"row {row}: confidences of other drafts"

    def _end(self, entry: Entry, reason: SequenceStatus) -> None:
        assert entry.final is None, f"two final records: {entry.final!r} and {reason!r}"
        assert not entry.is_handed_over
        assert reason.is_finished
        entry.final = reason

    def check_ends(self) -> None:
        """Everybody ended, for a reason that is true, and with the whole output where nothing cut it off."""
        for sequence_id, entry in self.entries.items():
            assert entry.output == entry.stream.tokens(entry.prompt_length, len(entry.tokens))
            if entry.is_handed_over and entry.final is None:
                continue
            assert entry.final is not None, f"sequence {sequence_id} got no final record"
            self._check_reason(sequence_id, entry, entry.final)

    def _check_reason(self, sequence_id: int, entry: Entry, reason: SequenceStatus) -> None:
        workload, length = self.workload, len(entry.tokens)
        needed = -(-(length + workload.sizes["draft_length"]) // workload.sizes["block_size"])
        is_beyond_pool = needed + 1 >= workload.sizes["num_blocks"]
        if reason == SequenceStatus.FINISHED_ABORTED:
            assert entry.is_aborted or not workload.is_default
        elif reason == SequenceStatus.FINISHED_IGNORED:
            blocks = -(-length // workload.sizes["block_size"])
            assert length > workload.longest_prompt or blocks >= workload.sizes["num_blocks"]
            assert entry.num_output == 0 or not workload.is_default
        elif reason == SequenceStatus.FINISHED_PREEMPTED:
            ends_victims = workload.config.stop_preempted_request or entry.is_structured
            is_too_long = length > workload.longest_prompt
            assert ends_victims or is_beyond_pool or is_too_long, f"sequence {sequence_id} could be recomputed"
        elif reason == SequenceStatus.FINISHED_STRUCTURED_FAILED:
            assert entry.fails_at is not None
        else:
            expected = entry.stream.expected_end(
                entry.first_length,
                entry.prompt_length,
                entry.max_tokens,
                entry.ignore_eos,
                workload.config.max_model_len,
            )
            assert (length, reason) == expected, f"sequence {sequence_id}"
        if entry.fails_at is None and reason == SequenceStatus.FINISHED_STRUCTURED_FAILED:
            raise AssertionError(f"sequence {sequence_id}: its grammar never failed")

    def whole_outputs(self) -> dict[str, list[int]]:
        """Outputs by request, of those that nothing cut off; forks are left out."""
        complete = (SequenceStatus.FINISHED_STOPPED, SequenceStatus.FINISHED_LENGTH_CAPPED)
        entries = self.entries.values()
        return {entry.key: entry.output for entry in entries if entry.final in complete and not entry.is_forked}
