"""Threads that work through a list of calls."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from queue import SimpleQueue

logger = logging.getLogger(__name__)

STACK_BYTES = 16 << 20
"""Twice what a worker may use: a grammar that was compiled there cannot exhaust the stack of a thread here."""
_STACK_SIZE = threading.Lock()


def start_thread(name: str, run: Callable[[], None]) -> threading.Thread:
    """Start a daemon thread with a stack of STACK_BYTES."""
    thread = threading.Thread(target=run, name=name, daemon=True)
    with _STACK_SIZE:  # a setting of the whole process
        before = threading.stack_size(STACK_BYTES)
        try:
            thread.start()
        finally:
            threading.stack_size(before)
    return thread


class CallThreads:
    """A few threads that make calls in the order in which they were given; a call that raises harms nothing else."""

    def __init__(self, name: str, num_threads: int) -> None:
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._threads = [start_thread(f"{name}-{i}", self._run) for i in range(num_threads)]

    def call(self, function: Callable[[], None]) -> None:
        """Have a function called by one of the threads."""
        self._calls.put(function)

    def close(self) -> None:
        """Finish what was given so far and end the threads; waits for them, except when called by one of them."""
        for _ in self._threads:
            self._calls.put(None)
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join()

    def _run(self) -> None:
        while True:
            function = self._calls.get()
            if function is None:
                return
            try:
                function()
            except BaseException:
                logger.exception("a call of the compile service failed")
            del function  # and what it holds, while this thread waits for the next
