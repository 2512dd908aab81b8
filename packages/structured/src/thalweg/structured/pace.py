"""Notices outputs whose grammar takes too much of the processor in a step: everybody waits for the masks of all."""

from __future__ import annotations

from time import perf_counter, thread_time


class Pace:
    """Measures what one thread does piece by piece, from now on.

    The clock of the processor is slow to read, so it is asked only where the other one says that it may matter: a
    thread that was interrupted has done nothing wrong.
    """

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._began_s = self._last_s = perf_counter()
        self._began_cpu_s = thread_time()

    def lap(self) -> float:
        """Seconds of the processor since the last lap, at least; 0 if they are within the limit."""
        last_s, self._last_s = self._last_s, perf_counter()
        if self._last_s - last_s <= self._limit_s:
            return 0.0
        cpu_s = thread_time()
        # What came before the lap took no more of the processor than of the clock.
        taken_s = cpu_s - self._began_cpu_s - (last_s - self._began_s)
        self._began_s, self._began_cpu_s = self._last_s, cpu_s
        return taken_s if taken_s > self._limit_s else 0.0
