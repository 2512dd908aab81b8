"""Writes the periodic line on a thread of its own, so that a slow log never holds a step up."""

from __future__ import annotations

import logging
import queue
import threading
import time

from thalweg.engine.statistics.figures import Figures
from thalweg.engine.statistics.line import render

_LOG = logging.getLogger("thalweg.engine.statistics")

STAGGER_S = 0.005
"""Between ranks that reach the same step together, so that their lines come one after the other."""


class LineReporter:
    """Logs figures in the order in which they come. The thread starts with the first ones."""

    def __init__(self, rank: int = 0) -> None:
        self._delay_s = (rank % 8) * STAGGER_S
        self._queue: queue.Queue[Figures | None] = queue.Queue()
        self._thread: threading.Thread | None = None

    def submit(self, figures: Figures) -> None:
        """Log these figures soon."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="thalweg-statistics", daemon=True)
            self._thread.start()
        self._queue.put(figures)

    def close(self, timeout_s: float = 1.0) -> None:
        """Log what was submitted and end the thread, as far as that takes no longer than the timeout."""
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join(timeout_s)
            self._thread = None

    def _run(self) -> None:
        while (figures := self._queue.get()) is not None:
            time.sleep(self._delay_s)
            try:
                _LOG.info("%s", render(figures))
            except Exception:
                _LOG.exception("the statistics of step %d could not be logged", figures.step)
