"""The scheduler's record of one request: its tokens, how far they are computed, and what it owns."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from thalweg.interfaces import SequenceStatus

Confidences = NDArray[np.float32] | None
"""[G] raw confidences of one round of drafts; None = unknown."""


@dataclass(slots=True, eq=False)
class Sequence:
    """One request. Lengths are derived, never stored twice."""

    sequence_id: int
    token_ids: list[int]
    """Prompt, then accepted output; never drafts."""
    prompt_length: int
    max_tokens: int
    eos_token_id: int
    ignore_eos: bool
    checkpoints: deque[int]
    """Ascending positions at which a prefill chunk must end; passed ones are gone."""
    is_schedulable: bool
    structured_status: int
    """0: free text. Other values come from the sampler; -1 ends the request."""

    status: SequenceStatus = SequenceStatus.WAITING
    num_computed: int = 0
    """Leading tokens whose cache entries exist, as far as results were processed."""
    total_inflight: int = 0
    """Tokens reserved for steps that were planned and not processed yet."""
    last_inflight: int = 0
    """The part of them that the newest such step reserved."""
    blocks: list[int] = field(default_factory=list)
    state_slot: int = -1
    draft_slot: int = 0
    """Where the drafter keeps what it knows about this sequence; 0 = none."""
    has_draft_info: bool = False
    """The draft slot was written and not read since."""
    draft_token_ids: list[int] = field(default_factory=list)
    confidences: Confidences = None
    """Of the attached drafts, which the last processed step proposed."""
    previous_confidences: Confidences = None
    """Of the drafts before those."""
    schedule_count: int = 0
    """Steps planned with this sequence; those processed with it are as many, or one fewer while one is in flight."""
    process_count: int = 0
    is_held: bool = False
    """Somebody still reads its memory, which stays past the sequence's end."""
    is_kept: bool = False
    """Its memory would be free by now if nobody had held it."""
    has_final_record: bool = False
    """The record that ends the request was reported."""
    has_left: bool = False
    """No queue and no unprocessed step knows it any more; at most its memory is left."""

    @property
    def length(self) -> int:
        return len(self.token_ids)

    @property
    def num_output(self) -> int:
        return len(self.token_ids) - self.prompt_length

    @property
    def num_drafts(self) -> int:
        return len(self.draft_token_ids)

    @property
    def is_finished(self) -> bool:
        return self.status >= SequenceStatus.FINISHED_STOPPED

    @property
    def num_in_flight(self) -> int:
        """Steps that were planned with it and not processed yet."""
        return self.schedule_count - self.process_count

    def blocks_needed(self, block_size: int) -> int:
        """Blocks that hold all its tokens, those that steps in flight may add, and the attached drafts."""
        return -(-(self.length + self.total_inflight + self.num_drafts) // block_size)

    def reserve(self, num_tokens: int) -> None:
        """A planned step may add this many tokens."""
        self.total_inflight += num_tokens
        self.last_inflight = num_tokens

    def settle(self) -> None:
        """The oldest step in flight was processed: its tokens are committed or gone."""
        if self.total_inflight == self.last_inflight:
            self.last_inflight = 0
        self.total_inflight = self.last_inflight

    def attach_drafts(self, token_ids: list[int], confidences: Confidences) -> None:
        """Replace the drafts by those of the next round."""
        self.draft_token_ids = token_ids
        self.previous_confidences, self.confidences = self.confidences, confidences

    def append(self, token_id: int, max_model_len: int) -> None:
        """Add an output token and finish when it was the last one."""
        self.token_ids.append(token_id)
        if token_id == self.eos_token_id and not self.ignore_eos:
            self.status = SequenceStatus.FINISHED_STOPPED
        elif self.length > max_model_len or self.num_output == self.max_tokens:
            self.status = SequenceStatus.FINISHED_LENGTH_CAPPED

    def restart(self) -> None:
        """Forget everything computed; prompt and output are prefilled again as one prompt."""
        self.status = SequenceStatus.WAITING
        self.num_computed = 0
        self.total_inflight = self.last_inflight = 0
        self.draft_token_ids = []
        self.confidences = self.previous_confidences = None
        self.has_draft_info = False
        self.schedule_count = self.process_count = 0
