"""Everything the scheduler's functions share: options, pools, sequences, queues and steps in flight."""

from __future__ import annotations

from collections import deque

from thalweg.interfaces import SequenceStatus, VerifyBudget
from thalweg.scheduler.config import SchedulerConfig, Sizes
from thalweg.scheduler.flops import FlopsEstimator
from thalweg.scheduler.reference.memory import Memory
from thalweg.scheduler.reference.queues import WaitingQueue
from thalweg.scheduler.reference.sequence import Sequence
from thalweg.scheduler.reference.step import PlannedStep, PrefillBatch


class State:
    """The sequences of a scheduler between two of its calls."""

    def __init__(
        self,
        config: SchedulerConfig,
        sizes: Sizes,
        flops: FlopsEstimator | None = None,
        verify_budget: VerifyBudget | None = None,
    ) -> None:
        self.config = config
        self.sizes = sizes
        self.flops = flops
        self.verify_budget = verify_budget
        self.has_curve = False
        """The budget knows step times, so verify lengths vary."""
        self.is_default = config.policy == "default"
        """False: keep the defects that the recorded traces show."""
        self.is_prompt_engine = config.engine_type == "prompt"
        self.is_completion_engine = config.engine_type == "completion"
        self.runtime_length = config.runtime_length(sizes.draft_length)

        self.memory = Memory(sizes, config.max_num_seqs)
        self.sequences: dict[int, Sequence] = {}
        """By id: all that stand in a queue or in an unprocessed step, or own memory."""
        self.waiting = WaitingQueue(holders_first=self.is_default)
        self.prompted: deque[Sequence] = deque()
        """Loaded or forked sequences that are ready to decode and wait for a place in the batch."""
        self.running: list[Sequence] = []
        self.prepared: PrefillBatch | None = None
        """The prefill of the step that is being planned."""
        self.in_flight: deque[PlannedStep] = deque()
        """Planned and not processed yet, oldest first."""
        self.decode_step = 0
        """Decode steps since the last prefill step."""
        self.num_preempted = 0
        self.num_aborted = 0

    @property
    def max_prompt_length(self) -> int:
        """Longest sequence that prefill accepts."""
        if self.config.chunked_prefill:
            return self.config.max_model_len
        return min(self.config.max_model_len, self.sizes.max_num_batched_tokens)

    @property
    def padding_drafts(self) -> list[int]:
        """What the first decode step of a sequence verifies: no drafter has run yet."""
        return [self.sizes.vocab_size - 1] * self.sizes.draft_length

    @property
    def has_unfinished(self) -> bool:
        queued = self.waiting or self.prompted or self.running
        return bool(queued or self.in_flight) or self.memory.copies.has_pinned_sources

    @property
    def has_running(self) -> bool:
        return any(not sequence.is_finished for sequence in self.running)

    @property
    def has_half_prefilled(self) -> bool:
        return bool(self.waiting.holders())

    @property
    def sequences_in_prefill(self) -> list[Sequence]:
        """They stand in no queue until the prefill step is processed."""
        prepared = [sequence for sequence, _ in self.prepared.rows] if self.prepared else []
        return prepared + [row.sequence for step in self.in_flight if step.is_prefill for row in step.rows]

    def end(self, sequence: Sequence, status: SequenceStatus) -> None:
        """Finish a sequence that is in no queue and take its memory, whoever holds it."""
        sequence.status = status
        self.memory.release(sequence)

    def free(self, sequence: Sequence) -> None:
        """Take the memory of a finished sequence back; if somebody holds it, that waits for the hold to end.

        The draft slot goes in any case: there are no more than running sequences, and no store reads it.
        """
        self.memory.draft_slots.give_back(sequence)
        if sequence.is_held:
            sequence.is_kept = True
        else:
            self.memory.release(sequence)

    def drop_finished(self) -> list[Sequence]:
        """Take out those who were aborted before they could run, and give what they own back."""
        from_waiting = self.waiting.remove_finished()
        others = [sequence for sequence in self.prompted if sequence.is_finished]
        self.prompted = deque(sequence for sequence in self.prompted if not sequence.is_finished)
        if self.is_prompt_engine:
            # No decode step will take them out of running, and they must not be handed over.
            others += [sequence for sequence in self.running if sequence.is_finished]
            self.running = [sequence for sequence in self.running if not sequence.is_finished]
        for sequence in from_waiting + others if self.is_default else others:
            self.free(sequence)
        return from_waiting + others

    def forget(self, sequence: Sequence) -> None:
        """Drop the record of a sequence that has left and owns nothing."""
        if sequence.has_left and not sequence.blocks:
            self.sequences.pop(sequence.sequence_id, None)
