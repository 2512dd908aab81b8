"""Planning while steps run: one rank plans in a thread, all ranks take the plan in the same step."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from thalweg.eplb._checks import require_integer
from thalweg.eplb.placement import Placement
from thalweg.interfaces import InvariantError

if TYPE_CHECKING:
    from collections.abc import Sequence

T = TypeVar("T")
_WAITING, _PLANNED, _FAILED = b"w", b"p", b"f"


class Channel(Protocol):
    """How the ranks of an expert-parallel group tell each other something, on the host."""

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    def exchange(self, data: bytes) -> Sequence[bytes]:
        """What every rank said, by rank; a collective. Raises PeerDiedError naming ranks that did not say anything."""


class BackgroundPlanner:
    """Plans without holding up steps.

    One rank plans and all take its result: a search is equal on every machine, but only one of them has to pay for it,
    and threads end at different times. All ranks call `start` and `poll` in the same steps.
    make_plan: called with history and current placement, in a thread of the planning rank. channel: of all ranks.
    """

    def __init__(
        self, make_plan: Callable[[NDArray[Any], Placement], Placement], channel: Channel, planning_rank: int = 0
    ) -> None:
        require_integer("planning_rank", planning_rank, 0, channel.size - 1)
        self._make_plan = make_plan
        self._channel = channel
        self._planning_rank = planning_rank
        self._current: Placement | None = None
        self._result: Future[Placement] | None = None

    @property
    def is_planning(self) -> bool:
        """Whether a plan was started and not yet handed out; the same on all ranks."""
        return self._current is not None

    def start(self, history: NDArray[Any], current: Placement) -> None:
        """Begin a plan. history: [steps, layers, experts] of all ranks together, only read on the planning rank.

        Raises InvariantError while a plan is being made.
        """
        if self._current is not None:
            raise InvariantError("a plan is being made; the next one can start when poll has returned it")
        self._current = current
        if self._channel.rank == self._planning_rank:
            self._result = run_in_background(lambda: self._make_plan(history, current))

    def poll(self) -> Placement | None:
        """The plan, once it is there, else None; never waits for the planning itself.

        Layers that stay are those of the current placement, in others the copies of an expert are numbered by slot.

        Raises InvariantError on every rank if planning failed, on the planning rank from the error that it failed with;
        the current placement stays valid and another plan can start.
        """
        if self._current is None:
            return None
        answer = self._channel.exchange(self._answer())[self._planning_rank]
        if answer == _WAITING:
            return None
        current, result, self._current, self._result = self._current, self._result, None, None
        if answer == _FAILED:
            cause = result.exception() if result is not None else None
            raise InvariantError(f"planning failed on rank {self._planning_rank}: {cause or 'see there'}") from cause
        slots = np.frombuffer(answer[1:], "<i4").reshape(current.logical_of_physical.shape)
        planned = Placement.from_slots(slots.astype(np.int32), current.num_ranks, current.num_experts)
        return current.with_layers(planned, (slots != current.logical_of_physical).any(axis=1))

    def _answer(self) -> bytes:
        if self._result is None or not self._result.done():
            return _WAITING
        if self._result.exception() is not None:
            return _FAILED
        return _PLANNED + self._result.result().logical_of_physical.astype("<i4").tobytes()


def run_in_background(work: Callable[[], T]) -> Future[T]:
    """The future result of work in a thread of its own, which does not keep the process from ending."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future
