"""A step as the scheduler remembers it, from its planning until its result arrives."""

from __future__ import annotations

from dataclasses import dataclass, field

from thalweg.interfaces import InvariantError, SequenceStatus, StepKind
from thalweg.scheduler.reference.copies import ForkCopies
from thalweg.scheduler.reference.sequence import Sequence


@dataclass(slots=True)
class Row:
    """One sequence in one step, with the numbers it was planned with; `correct` brings them up to date."""

    sequence: Sequence
    start: int
    """Position of its first query token; in asynchronous decode as if the step in flight kept all its tokens."""
    query_length: int
    committed_length: int
    read_slot: int
    write_slot: int
    previous_row: int
    """Row of the sequence in the decode step in flight, else -1."""

    @property
    def context_length(self) -> int:
        return self.start + self.query_length

    @property
    def is_unfinished_chunk(self) -> bool:
        """A prefill row whose prompt goes on in a later step."""
        return self.context_length < self.committed_length


@dataclass(slots=True)
class PrefillBatch:
    """Sequences taken out of the waiting queue for a step that is not committed yet."""

    rows: list[tuple[Sequence, int]] = field(default_factory=list)
    """Sequence and chunk length."""
    num_batched_tokens: int = 0
    """Tokens charged to the budget: every chunk rounded up to the alignment."""
    dropped: list[Sequence] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.rows or self.dropped)


@dataclass(slots=True)
class PlannedStep:
    """Rows and lists of one plan."""

    step: int
    kind: StepKind
    num_batched_tokens: int
    rows: list[Row]
    finished: list[Sequence] = field(default_factory=list)
    dropped: list[Sequence] = field(default_factory=list)
    restarted: list[Sequence] = field(default_factory=list)
    copies: list[ForkCopies] = field(default_factory=list)
    is_corrected: bool = False

    @property
    def is_prefill(self) -> bool:
        return self.kind is StepKind.PREFILL

    def is_preempted(self, row: Row) -> bool:
        """The sequence lost its memory after this decode step was planned; what the step made of it is void."""
        return not self.is_prefill and row.sequence.status == SequenceStatus.WAITING


def open_row(sequence: Sequence, query_length: int, reserved: int, previous_row: int = -1) -> Row:
    """Count the sequence into a step that may add `reserved` tokens.

    Its draft information is read once, by the step planned (or corrected) next.
    """
    if sequence.num_in_flight not in (0, 1):
        raise InvariantError(
            f"sequence {sequence.sequence_id} was planned {sequence.schedule_count} times and processed "
            f"{sequence.process_count} times; at most one step may be in flight"
        )
    row = Row(
        sequence=sequence,
        start=sequence.num_computed + sequence.total_inflight,
        query_length=query_length,
        committed_length=sequence.length,
        read_slot=take_draft_info(sequence),
        write_slot=sequence.draft_slot,
        previous_row=previous_row,
    )
    sequence.schedule_count += 1
    sequence.reserve(reserved)
    return row


def take_draft_info(sequence: Sequence) -> int:
    """The draft slot to read, 0 when nothing was written to it since it was last read."""
    slot = sequence.draft_slot if sequence.has_draft_info else 0
    sequence.has_draft_info = False
    return slot
