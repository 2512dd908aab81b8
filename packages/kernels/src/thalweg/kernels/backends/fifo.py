"""A queue of work that one thread runs in order; its positions number the work from 1."""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, TypeVar, cast

import torch

from thalweg.interfaces import InvariantError, ThalwegError

T = TypeVar("T")
EXIT_PATIENCE_S = 5.0
"""How long the end of the process waits for work that is running."""

logger = logging.getLogger(__name__)


class LaunchedWorkError(ThalwegError, RuntimeError):
    """Work on a stream has raised: what it raised is the cause. The work behind it was not run."""


class WorkTiming:
    """thalweg.interfaces.Timing of work on this thread."""

    def __init__(self) -> None:
        self._span_ns: tuple[int, int] | None = None

    def set(self, started_ns: int, ended_ns: int) -> None:
        """It has run."""
        self._span_ns = started_ns, ended_ns

    @property
    def span_ns(self) -> tuple[int, int]:
        """Raises InvariantError for work that has not run."""
        if self._span_ns is None:
            raise InvariantError("the times of work are known once it has run, and of none that failed")
        return self._span_ns


class LaunchedWork(Generic[T]):
    """thalweg.interfaces.Launched: a piece of work and, once it has run, its result."""

    def __init__(self, queue: WorkQueue, position: int, work: Callable[[], T], forbids_sync: bool) -> None:
        self.position = position
        self.forbids_sync = forbids_sync
        self._queue = queue
        self._work: Callable[[], T] | None = work
        self._result: T | None = None
        self.timing = WorkTiming()
        """When it ran."""
        self._inference = torch.is_inference_mode_enabled()
        self._grad = torch.is_grad_enabled()
        self._num_threads = torch.get_num_threads()

    @property
    def value(self) -> T:
        """The result.

        On the stream's own thread it is there for all later work. On any other thread somebody must have seen an event
        behind the work pass (`wait`, `done`, `synchronize`): InvariantError if not, even where the work happens to have
        run. Raises LaunchedWorkError when this work, or work before it, failed.
        """
        self._queue.check_readable(self.position)
        return cast(T, self._result)

    def run(self) -> None:
        """Run the work as its launcher would have: same autograd state, same number of torch threads."""
        work, self._work = self._work, None
        if torch.get_num_threads() != self._num_threads:
            torch.set_num_threads(self._num_threads)  # OpenMP keeps the number per thread
        with torch.inference_mode(self._inference), torch.set_grad_enabled(self._grad):
            started = time.perf_counter_ns()
            self._result = cast(Callable[[], T], work)()
            self.timing.set(started, time.perf_counter_ns())

    def drop(self) -> None:
        """Let go of work that is not going to run."""
        self._work = None


class WorkQueue:
    """The queue and its thread, which knows the queue and not the stream: so a forgotten stream can end it."""

    def __init__(self, name: str) -> None:
        self.current: LaunchedWork[Any] | None = None
        """The work that is being run."""
        self._name = name
        self._changed = threading.Condition()
        self._waiting: deque[LaunchedWork[Any]] = deque()
        self._num_submitted = 0
        self._num_finished = 0
        self._num_seen = 0
        """How much of the finished work other threads know of."""
        self._error: BaseException | None = None
        self._error_position = 0
        self._error_reported = False
        self._is_closing = False
        self._thread: threading.Thread | None = None
        self._has_ended = threading.Event()
        self._process = 0

    def is_own_thread(self) -> bool:
        """Whether the caller is work of this queue."""
        return (
            self.current is not None
            and threading.current_thread() is self._thread
            and os.getpid() == self._process  # a child forked by work goes on under the same thread object
        )

    def submit(self, work: Callable[[], T], forbids_sync: bool) -> LaunchedWork[T]:
        """Append work; the first starts the thread. Raises InvariantError after `close` and in a forked process."""
        self._check_process()
        with self._changed:
            if self._is_closing:
                raise InvariantError(f"{self._name} is closed; work can be launched before that")
            launched = LaunchedWork(self, self._num_submitted + 1, work, forbids_sync)
            self._num_submitted += 1
            self._waiting.append(launched)
            if self._thread is None:
                self._start()
            self._changed.notify_all()
            return launched

    def run_inside(self, work: Callable[[], T]) -> LaunchedWork[T]:
        """Run work that was launched by running work: at once, as a device backend does."""
        outer = cast("LaunchedWork[Any]", self.current)
        launched = LaunchedWork(self, outer.position, work, outer.forbids_sync)
        launched.run()
        return launched

    def end(self) -> int:
        """Position of the work submitted last; for running work, its own."""
        if self.is_own_thread():
            return cast("LaunchedWork[Any]", self.current).position
        self._check_process()
        with self._changed:
            return self._num_submitted

    def has_passed(self, position: int) -> bool:
        """Whether the work up to a position has finished; running work has passed what it finds on its own queue."""
        if self.is_own_thread():
            return position <= cast("LaunchedWork[Any]", self.current).position
        self._check_process()
        with self._changed:
            if self._num_finished < position:
                return False
            self._num_seen = max(self._num_seen, position)
            return True

    def wait_for(self, position: int) -> None:
        """Block until the work up to a position has finished."""
        if self.is_own_thread():
            if not self.has_passed(position):
                raise InvariantError(f"work of {self._name} waits for work behind itself, which can only run after it")
            return
        self._check_process()
        with self._changed:
            self._changed.wait_for(lambda: self._num_finished >= position)
            self._num_seen = max(self._num_seen, position)
            self._raise_error_before(position)

    def check_readable(self, position: int) -> None:
        """Raise unless the calling thread may read the result of the work at a position."""
        if self.is_own_thread():
            if not self.has_passed(position):
                raise InvariantError(f"work of {self._name} reads a result of work behind itself")
            return
        self._check_process()
        with self._changed:
            if self._num_seen < position:
                state = "has run, by luck" if self._num_finished >= position else "has not run"
                raise InvariantError(
                    f"a result of {self._name} is read too early: work {position} {state}, and the last event known "
                    f"to have passed lies behind work {self._num_seen}; wait for an event recorded after the launch"
                )
            self._raise_error_before(position)

    def close(self, timeout_s: float | None = None) -> None:
        """Take no more work, finish what is there, end the thread.

        Called by the queue's own work, it does not wait. In a forked process there is no thread to end.
        """
        if self._is_elsewhere():
            return
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
            thread = self._thread
        if thread is None or thread is threading.current_thread():
            return
        # Not `join` alone: interrupted once, Python 3.11 takes the thread for ended ever after.
        if self._has_ended.wait(timeout_s):
            thread.join(timeout_s)

    def close_at_exit(self) -> None:
        """Close without the work that has not begun: nobody is left to read what it would give."""
        if self._is_elsewhere():
            return
        with self._changed:
            self._num_finished += len(self._waiting)
            self._waiting.clear()
        self.close(EXIT_PATIENCE_S)

    def _start(self) -> None:
        self._process = os.getpid()
        self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        self._thread.start()
        atexit.register(self.close_at_exit)  # a daemon thread inside torch must not meet the interpreter's end

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._is_closing)
                if not self._waiting:
                    break
                self.current = launched = self._waiting.popleft()
            try:
                if self._error is None:
                    launched.run()
            except BaseException as error:
                self._error, self._error_position = error, launched.position
            launched.drop()
            del launched  # or its result would live until the next work comes
            with self._changed:
                self.current = None
                self._num_finished += 1
                self._changed.notify_all()
        atexit.unregister(self.close_at_exit)
        self._has_ended.set()
        if self._error is not None and not self._error_reported:
            logger.error("work of %s raised, and nothing waited for it", self._name, exc_info=self._error)

    def _raise_error_before(self, position: int) -> None:
        if self._error is not None and self._error_position <= position:
            self._error_reported = True
            raise LaunchedWorkError(
                f"work {self._error_position} of {self._name} raised {type(self._error).__name__}: {self._error}"
            ) from self._error

    def _is_elsewhere(self) -> bool:
        """Whether this is a copy in a forked process; its lock may be held by a thread that is not there."""
        return self._thread is not None and os.getpid() != self._process

    def _check_process(self) -> None:
        if self._is_elsewhere():
            raise InvariantError(
                f"{self._name} works in process {self._process}, and its thread does not follow a fork; process "
                f"{os.getpid()} needs a backend of its own"
            )
