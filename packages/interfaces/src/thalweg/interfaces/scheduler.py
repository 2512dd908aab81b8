"""The contract of a scheduler: three planning calls with the votes between them, and post-processing.

Planning is split so that the core needs no communicator: the caller holds the vote that `begin_step` asks for and
calls `try_prefill` only when it was won and this rank wants a prefill. One engine thread owns a scheduler; only its
two pools may be used from other threads.

Synchronous: plan N, process N, plan N+1. Asynchronous: at most one decode step is unprocessed while the next step is
planned and launched: plan N, process N-1, correct N, plan N+1. A prefill step is processed before anything else is
planned.
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
    """Decode, without asking anybody."""
    ALL = 1
    ANY = 2
    PREFILL = 3
    """No vote: every step of a prefill-only engine is a prefill, an empty one included."""


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
        """End these sequences and return how many were unfinished; unknown ids count for nothing.

        A waiting sequence gives its memory back at once, unless it is held; a running one leaves with the next decode.
        """

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
        """Free the memory of the plan's `finished_ids`, except of sequences that are being held.

        Also lets go of the sources that the plan before this one copied from.
        """

    def hold(self, sequence_id: int) -> None:
        """Keep a sequence's memory past its end, until `release_one`."""

    def release_one(self, sequence_id: int) -> None:
        """Free a held sequence, or hand over a completed prompt of a prefill-only engine.

        Does nothing when it owns nothing.
        """

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

    def correct(self, step: int, query_lengths: NDArray[np.int32] | None = None) -> StepCorrection:
        """Asynchronous decode: bring a launched step up to date once the step before it was processed.

        query_lengths: int32 [N] verify lengths as the device distributed them, with the planned sum; None keeps the
        planned ones. Raises ValueError for wrong lengths, RuntimeError unless `step` is a decode step that is the only
        one unprocessed and was not corrected yet, or without asynchronous scheduling.
        """

    def add_loaded(
        self,
        token_ids: NDArray[np.int32],
        num_computed_tokens: int,
        *,
        max_tokens: int,
        eos_token_id: int,
        ignore_eos: bool = False,
        prompt_length: int | None = None,
        checkpoints: Sequence[int] = (),
        is_structured: bool = False,
    ) -> int | None:
        """Allocate for a sequence of which somebody else fills the first `num_computed_tokens` cache entries.

        Not schedulable before `set_schedulable`. token_ids: prompt, then prompt_length onwards output; None: all of it
        is prompt. With output and all but the last token computed it is ready to decode, otherwise its prefill goes on.
        Returns None when blocks or state slots are short now. Raises ValueError for a request that could never run
        (longer than a prompt may be, more blocks than there are), for num_computed_tokens outside 0..len - 1, and for a
        sequence that this engine type cannot continue.
        """

    def fork(self, sequence_id: int, *, last_token_id: int | None = None) -> int | None:
        """Add a sequence that goes on from where another one is, and return its id.

        Full blocks are shared; the state slot and a partly filled block are copied by the next plan. A decoding child
        may replace the last token. Returns None when memory is short now. Raises ValueError for an unknown or finished
        sequence and for a replaced prompt token, RuntimeError while two steps are unprocessed or the sequence is part
        of an unprocessed prefill.
        """

    def memory_of(self, sequence_id: int) -> tuple[NDArray[np.int32], int]:
        """Blocks, in order of position, and state slot (-1 = none) of a sequence. Raises ValueError if unknown."""

    def set_step_time_curve(self, points: Sequence[tuple[int, float]]) -> None:
        """Turn on variable verify lengths; points are (graph size in query tokens, milliseconds).

        Raises ValueError unless sizes ascend strictly from at least 1, times are finite and positive, and the largest
        size holds one token of every sequence that may run.
        """

    def record_step_time(self, num_rows: int, graph_size: int, forward_ms: float, sampler_ms: float) -> None:
        """Feed back a measured decode step. Raises ValueError for sizes below 1, negative and non-finite times."""

    def debug_state(self) -> dict[str, Any]:
        """Counters, queues and free lists, for traces and tests; the keys are not a stable interface."""
