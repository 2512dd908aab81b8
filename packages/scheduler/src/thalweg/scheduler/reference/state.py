"""Everything the planning functions share: options, pools, queues and running totals."""

from __future__ import annotations

from thalweg.interfaces import SequenceStatus
from thalweg.scheduler.config import SchedulerConfig, Sizes
from thalweg.scheduler.reference.memory import Memory
from thalweg.scheduler.reference.queues import WaitingQueue
from thalweg.scheduler.reference.sequence import Sequence


class State:
    """The sequences of a scheduler between two of its calls."""

    def __init__(self, config: SchedulerConfig, sizes: Sizes) -> None:
        self.config = config
        self.sizes = sizes
        self.is_default = config.policy == "default"
        """False: keep the defects that the recorded traces show."""
        self.memory = Memory(sizes, config.max_num_seqs)
        self.waiting = WaitingQueue(holders_first=self.is_default)
        self.running: list[Sequence] = []
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
    def has_running(self) -> bool:
        return any(not sequence.is_finished for sequence in self.running)

    @property
    def has_half_prefilled(self) -> bool:
        return any(sequence.blocks and not sequence.is_finished for sequence in self.waiting)

    def end(self, sequence: Sequence, status: SequenceStatus) -> None:
        """Finish a sequence that is in no queue and in no step, and take its memory back."""
        sequence.status = status
        self.memory.release(sequence)
