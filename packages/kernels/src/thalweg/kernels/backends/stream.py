"""The CPU backend's stream and events, over a queue with a thread of its own.

An event is a position in the queue and has passed when that much work is finished.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from thalweg.kernels.backends.fifo import LaunchedWork, WorkQueue

if TYPE_CHECKING:
    from thalweg.interfaces.backend import Event
    from thalweg.kernels.backends.host_sync import HostSync

T = TypeVar("T")


class QueueEvent:
    """thalweg.interfaces.Event: the end of a queue at one moment."""

    def __init__(self, queue: WorkQueue, position: int) -> None:
        self.queue = queue
        self._position = position

    def done(self) -> bool:
        """Whether everything before the event has finished, or failed."""
        return self.queue.has_passed(self._position)

    def wait(self) -> None:
        """Block until it has. Raises LaunchedWorkError when work before the event failed."""
        self.queue.wait_for(self._position)


class FifoStream:
    """thalweg.interfaces.Stream on a thread of its own, which starts with the first work.

    host_sync: asked before the host blocks on the whole queue; work keeps the answer of the moment it was launched.
    """

    def __init__(self, name: str, host_sync: HostSync) -> None:
        self._queue = WorkQueue(name)
        self._host_sync = host_sync
        weakref.finalize(self, _end_forgotten, self._queue).atexit = False

    def launch(self, work: Callable[[], T]) -> LaunchedWork[T]:
        """Queue work and return at once. Launched by work of this stream, it runs inside that work, at once."""
        if self._queue.is_own_thread():
            return self._queue.run_inside(work)
        return self._queue.submit(work, self._host_sync.is_forbidden(None))

    def record(self) -> QueueEvent:
        """Mark the end of the queue; by work of this stream, the end of that work."""
        return QueueEvent(self._queue, self._queue.end())

    def wait(self, event: Event) -> None:
        """Hold later work until the event, of whatever stream, has passed; what it raises fails this stream too."""
        if not (isinstance(event, QueueEvent) and event.queue is self._queue):
            self.launch(event.wait)

    def synchronize(self) -> None:
        """Block until the queue is empty. Raises HostSyncError where that is forbidden."""
        self._host_sync.check(self.current)
        self.record().wait()

    def close(self) -> None:
        """Finish the queue and end the thread; a second call does nothing."""
        self._queue.close()

    @property
    def current(self) -> LaunchedWork[Any] | None:
        """The work of this stream that the calling thread is running, if it is."""
        return self._queue.current if self._queue.is_own_thread() else None


def _end_forgotten(queue: WorkQueue) -> None:
    """End the thread of a stream that nobody has any more; it finishes what is queued, since events may be waited for.

    Does not wait, and takes no lock for long: it runs wherever the garbage collector does.
    """
    queue.close(timeout_s=0)
