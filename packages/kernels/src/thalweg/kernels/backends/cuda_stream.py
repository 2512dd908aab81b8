"""The stream of a CUDA device, its events, and how long its work took."""

# torch.cuda has functions without annotations.
# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Generic, TypeVar, cast

import torch

from thalweg.interfaces import InvariantError
from thalweg.kernels.backends.fifo import LaunchedWorkError

if TYPE_CHECKING:
    from thalweg.interfaces.backend import Event

T = TypeVar("T")


class CudaEvent:
    """thalweg.interfaces.Event: a point in a stream. failure: of work before it."""

    def __init__(self, event: torch.cuda.Event, failure: BaseException | None) -> None:
        self.event = event
        self.failure = failure

    def done(self) -> bool:
        """Whether everything before the event has finished, or failed."""
        return self.failure is not None or bool(self.event.query())

    def wait(self) -> None:
        """Block until it has. Raises LaunchedWorkError when work before the event failed."""
        if self.failure is not None:
            raise _work_error(self.failure) from self.failure
        self.event.synchronize()


class CudaClock:
    """Turns events of a stream that have passed into times of the host's clock.

    The device only tells how far two events lie apart, in single precision, so times are counted on from event to
    event; the first one is tied to the host's clock.
    """

    def __init__(self, stream: torch.cuda.Stream) -> None:
        self._last = torch.cuda.Event(enable_timing=True)
        self._last.record(stream)
        self._last.synchronize()
        self._last_ns = time.perf_counter_ns()

    def time_ns(self, event: torch.cuda.Event) -> int:
        """When an event passed that has passed."""
        self._last_ns += round(1e6 * self._last.elapsed_time(event))
        self._last = event
        return self._last_ns


class CudaTiming:
    """thalweg.interfaces.Timing: what lies between two events; none for work that failed or was part of other work."""

    def __init__(self, clock: CudaClock, events: tuple[torch.cuda.Event, ...] = ()) -> None:
        self._clock = clock
        self._events = events
        self._span_ns: tuple[int, int] | None = None

    @property
    def span_ns(self) -> tuple[int, int]:
        """When the device began and ended the work. Raises InvariantError before an event behind it has passed."""
        if self._span_ns is None:
            if not self._events or not self._events[-1].query():
                raise InvariantError("the times of work are known once it has run, and of none that failed")
            started, ended = map(self._clock.time_ns, self._events)
            self._span_ns, self._events = (started, ended), ()
        return self._span_ns


class CudaLaunched(Generic[T]):
    """thalweg.interfaces.Launched: work whose kernels are queued."""

    def __init__(self, timing: CudaTiming, result: T | None, failure: BaseException | None = None) -> None:
        self.timing = timing
        self._result = result
        self._failure = failure

    @property
    def value(self) -> T:
        """The result. Raises LaunchedWorkError when this work, or work before it, failed."""
        if self._failure is not None:
            raise _work_error(self._failure) from self._failure
        return cast(T, self._result)


class CudaStream:
    """thalweg.interfaces.Stream over a CUDA stream. Used from one thread.

    Launched work runs at once, with this stream as the current one; what it computes is queued. Once work has failed,
    nothing is run any more: what is queued behind would work on things that are not there.
    """

    def __init__(self, stream: torch.cuda.Stream) -> None:
        self.stream = stream
        self._clock: CudaClock | None = None
        self._failure: BaseException | None = None
        self._is_inside = False

    def launch(self, work: Callable[[], T]) -> CudaLaunched[T]:
        """Run work and return. Launched by work of this stream, it is part of that work."""
        if self._clock is None:
            self._clock = CudaClock(self.stream)
        if self._is_inside:
            return CudaLaunched(CudaTiming(self._clock), work())
        if self._failure is not None:
            return CudaLaunched(CudaTiming(self._clock), None, self._failure)
        started, ended = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        self._is_inside = True
        try:
            with torch.cuda.stream(self.stream):
                started.record(self.stream)
                result = work()
                ended.record(self.stream)
        except Exception as error:
            self._failure = error
            return CudaLaunched(CudaTiming(self._clock), None, error)
        finally:
            self._is_inside = False
        return CudaLaunched(CudaTiming(self._clock, (started, ended)), result)

    def record(self) -> CudaEvent:
        """Mark the end of the queue."""
        event = torch.cuda.Event()
        event.record(self.stream)
        return CudaEvent(event, self._failure)

    def wait(self, event: Event) -> None:
        """Hold later work until the event, of whatever stream, has passed; what it raises fails this stream too."""
        if isinstance(event, CudaEvent) and event.failure is None:
            self.stream.wait_event(event.event)
        else:
            self.launch(event.wait)

    def synchronize(self) -> None:
        """Block until the queue is empty. Raises RuntimeError where that is forbidden."""
        self.stream.synchronize()
        self.record().wait()


def _work_error(failure: BaseException) -> LaunchedWorkError:
    return LaunchedWorkError(f"launched work raised {type(failure).__name__}: {failure}")
