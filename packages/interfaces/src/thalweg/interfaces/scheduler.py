"""The contract of a scheduler: three planning calls with the votes between them, and post-processing.

Planning is split so that the core needs no communicator: the caller holds the vote that `begin_step` asks for and
calls `try_prefill` only when it was won and this rank wants a prefill. One engine thread owns a scheduler; only its
two pools may be used from other threads.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from thalweg.interfaces.cache import BlockAllocator
from thalweg.interfaces.step import StepCorrection, StepKind, StepOutcome, StepPlan, StepResult

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class VoteRound(enum.IntEnum):
    """Which agreement a step needs before any rank may prefill."""

    NONE = 0
    ALL = 1
    ANY = 2


@dataclass(frozen=True, slots=True)
class Ballot:
    """What `begin_step` asks the data-parallel group."""

    round: VoteRound
    wants: bool
    """This rank has a prefill to run."""


class Scheduler(Protocol):
    """Continuous batching over a paged cache and state slots."""

    def add(
        self,
        token_ids: NDArray[np.int32],
        *,
        max_tokens: int,
        eos_token_id: int,
        ignore_eos: bool = False,
        checkpoints: Sequence[int] = (),
        is_schedulable: bool = True,
        is_structured: bool = False,
    ) -> int:
        """Queue a request and return its sequence id.

        token_ids: int32 [L] prompt, L >= 1. checkpoints: ascending positions at which a prefill chunk must end.
        Raises ValueError for an empty prompt, a negative token or max_tokens < 1.
        """

    def abort(self, sequence_ids: Sequence[int]) -> int:
        """End these sequences and return how many were unfinished; unknown ids count for nothing."""

    def set_schedulable(self, sequence_id: int) -> None:
        """Let a waiting sequence be planned; its data has arrived."""

    def begin_step(self, anyone_running: bool, anyone_half_prefilled: bool = False) -> Ballot:
        """Open a step and say which vote it needs.

        The flags are group-wide: some rank has a running sequence; some rank holds a half-prefilled one.
        """

    def try_prefill(self) -> bool:
        """Prepare a prefill, after a won vote on a rank that wants one. True if it has rows or dropped something."""

    def finish_step(self, kind: StepKind) -> StepPlan:
        """Commit the step as this kind and return its plan; a prefill nobody prepared is an empty plan."""

    def process(self, result: StepResult) -> StepOutcome:
        """Append the sampled tokens of one step, in plan order. Raises ValueError for a wrong step or shape."""

    def release(self, step: int) -> None:
        """Free the memory of the plan's `finished_ids`, except of sequences that are being held."""

    def hold(self, sequence_id: int) -> None:
        """Keep a sequence's memory past `release`, until `release_one`."""

    def release_one(self, sequence_id: int) -> None:
        """Free a held sequence; does nothing when it owns nothing."""

    @property
    def blocks(self) -> BlockAllocator: ...

    @property
    def state_slots(self) -> BlockAllocator: ...

    @property
    def has_unfinished(self) -> bool: ...

    @property
    def has_running(self) -> bool: ...

    @property
    def has_half_prefilled(self) -> bool: ...

    def debug_state(self) -> dict[str, Any]:
        """Counters, queues and free lists, for traces and tests; the keys are not a stable interface."""


class AsynchronousScheduler(Scheduler, Protocol):
    """A scheduler that can plan one step ahead of what it has processed, and take sequences loaded from a store."""

    def correct(self, step: int, query_lengths: NDArray[np.int32] | None) -> StepCorrection:
        """Correct the rows of a launched decode step after the step before it was processed."""

    def add_loaded(self, token_ids: NDArray[np.int32], num_computed_tokens: int, *, max_tokens: int) -> int | None:
        """Allocate for a sequence whose cache comes from outside; None when memory is short. Not schedulable yet."""

    def set_step_time_curve(self, points: Sequence[tuple[int, float]]) -> None:
        """Turn on variable verify lengths; points are (graph size in tokens, milliseconds)."""

    def record_step_time(self, num_rows: int, graph_size: int, forward_ms: float, sampler_ms: float) -> None:
        """Feed back a measured decode step."""
