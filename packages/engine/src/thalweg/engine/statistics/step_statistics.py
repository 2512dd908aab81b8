"""Takes every finished step: adds it up, logs a line now and then, tells whoever wants to know."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from thalweg.engine.statistics.figures import Capacity, Figures
from thalweg.engine.statistics.record import StepRecord
from thalweg.engine.statistics.reporter import LineReporter
from thalweg.engine.statistics.totals import StepTotals
from thalweg.engine.statistics.window import StepWindow
from thalweg.engine.statistics_config import LOGGING_INTERVAL_STEPS
from thalweg.interfaces import ConfigError, GrammarCounts, RequestOutput, shown

_LOG = logging.getLogger("thalweg.engine.statistics")

MAX_WINDOW_STEPS = 10_000

StepCallback = Callable[[StepRecord], object]
FinishCallback = Callable[[Sequence[RequestOutput]], object]
T = TypeVar("T")


class _Guarded(Generic[T]):
    """A callback whose exceptions stay here: logged the first time, then ignored."""

    def __init__(self, callback: Callable[[T], object]) -> None:
        if not callable(callback):
            raise ConfigError(f"the callback is {shown(callback)}; it must be callable")
        self._callback = callback
        self._has_failed = False

    def __call__(self, value: T) -> None:
        try:
            self._callback(value)
        except Exception:
            if not self._has_failed:
                self._has_failed = True
                _LOG.exception("%r failed; steps go on, and its further failures are not logged", self._callback)


class StepStatistics:
    """Statistics of one engine. Nothing that goes wrong in here, or in a callback, reaches the step loop.

    Called from the engine's thread; so are the callbacks, once the step they are told of is processed. They may add and
    abort requests, but not step the engine. The line is logged by another thread.
    """

    def __init__(
        self,
        capacity: Capacity | None = None,
        *,
        interval_steps: int = LOGGING_INTERVAL_STEPS,
        rank: int = 0,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """capacity: what usage is measured against; None leaves those figures out.

        interval_steps: steps between two lines, and the length of the window, which has at most 10,000 steps; 0 or
        less: no lines, and a window of 100.
        """
        self.totals = StepTotals()
        self._interval = interval_steps
        self._clock = clock
        window = min(interval_steps, MAX_WINDOW_STEPS) if interval_steps > 0 else LOGGING_INTERVAL_STEPS
        self._window = StepWindow(window, capacity)
        self._reporter = LineReporter(rank)
        self._next_warning = 1
        """Faults of the drafter at which they are logged again."""
        self._on_step: list[_Guarded[StepRecord]] = [_Guarded(self._add)]
        self._on_finish: list[_Guarded[Sequence[RequestOutput]]] = []
        self._read_grammars: Callable[[], GrammarCounts] = GrammarCounts

    def on_step(self, callback: StepCallback) -> None:
        """Call this after every step. If it raises, that is logged the first time and changes nothing.

        Raises ConfigError for what cannot be called.
        """
        self._on_step.append(_Guarded(callback))

    def on_finish(self, callback: FinishCallback) -> None:
        """Call this with final outputs, soon after their requests ended; otherwise as `on_step`."""
        self._on_finish.append(_Guarded(callback))

    def watch_grammars(self, read: Callable[[], GrammarCounts]) -> None:
        """Read the totals of the compiler of grammars here."""
        self._read_grammars = read

    @property
    def grammars(self) -> GrammarCounts:
        """What became of the grammars of requests so far; of any thread."""
        return self._read_grammars()

    def record(self, record: StepRecord) -> None:
        """Take one finished step."""
        for callback in self._on_step:
            callback(record)

    def record_finished(self, outputs: Sequence[RequestOutput]) -> None:
        """Take outputs; those that are not final are left out."""
        final = [output for output in outputs if output.finished] if self._on_finish else []
        if final:
            for callback in self._on_finish:
                callback(final)

    def figures(self) -> Figures | None:
        """The figures of the last steps, as the periodic line shows them; None before the first step."""
        return self._window.figures(self._clock(), self.totals.num_finished, self.grammars)

    def close(self) -> None:
        """Finish the line that is being logged."""
        self._reporter.close()

    def _add(self, record: StepRecord) -> None:
        self.totals.add(record)
        self._window.add(record, self._clock())
        self._warn()
        if self._interval > 0 and record.plan.step % self._interval == 0:
            figures = self.figures()
            if figures is not None:
                self._reporter.submit(figures)

    def _warn(self) -> None:
        """Log what the drafter got wrong, at the first fault and whenever there are ten times as many."""
        illegal, bad = self.totals.num_illegal_drafts, self.totals.num_bad_confidences
        if illegal + bad >= self._next_warning:
            self._next_warning = 10 * (illegal + bad)
            _LOG.warning(
                "so far the drafter proposed %d ids outside the vocabulary or not as drawn, and %d confidences outside "
                "0..1; what was drawn stands, and nothing is expected of the others",
                illegal,
                bad,
            )
