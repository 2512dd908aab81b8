"""The start of a service: its zygote, and the library in its own process, loaded at the same time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from thalweg.structured.service.grammar_maker import GrammarMaker
from thalweg.structured.service.limits import ServiceLimits
from thalweg.structured.service.processes import ZygoteHandle

START_TIMEOUT_S = 60.0
"""Loading takes 3 s, and several times that where many processes share few cores."""


class Start:
    """One attempt; `run` is for a thread that may wait, everything else for the one that does not."""

    def __init__(self, maker: GrammarMaker, limits: ServiceLimits) -> None:
        self._maker = maker
        self._limits = limits
        self._lock = threading.Lock()
        self._zygote: ZygoteHandle | None = None
        self._is_given_up = False
        self.timeout_s = START_TIMEOUT_S
        self.deadline = time.monotonic() + self.timeout_s
        """When to give up."""
        self.is_loaded = False
        """Whether this process can make grammars."""
        self.error = ""
        """Why it failed, if it did."""

    def run(self, wake: Callable[[], None]) -> None:
        """Start the zygote and load the library; wake is called after each."""
        try:
            self._hand_over(ZygoteHandle(self._maker.vocabulary.to_bytes(), self._limits))
            wake()
            self._maker.prepare()
            self.is_loaded = True
        except Exception as error:
            self.error = str(error) or type(error).__name__
        wake()

    def _hand_over(self, zygote: ZygoteHandle) -> None:
        with self._lock:
            is_wanted = not self._is_given_up
            if is_wanted:
                self._zygote = zygote
        if not is_wanted:
            zygote.end()

    def take_zygote(self) -> ZygoteHandle | None:
        """The zygote, once; it may not be ready yet."""
        with self._lock:
            zygote, self._zygote = self._zygote, None
        return zygote

    def give_up(self) -> None:
        """End a zygote that was not taken, now or when it comes."""
        with self._lock:
            self._is_given_up = True
        zygote = self.take_zygote()
        if zygote is not None:
            zygote.end()
