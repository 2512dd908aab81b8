"""The dispatcher of a service, from when it is first needed to its end."""

from __future__ import annotations

import os
import threading
from concurrent.futures import Future

from thalweg.interfaces import Matcher, RequestError
from thalweg.structured.service.dispatcher import Dispatcher
from thalweg.structured.service.grammar_maker import GrammarMaker
from thalweg.structured.service.job_book import JobBook
from thalweg.structured.service.jobs import resolve
from thalweg.structured.service.limits import ServiceLimits


class LazyDispatcher:
    """Starts a dispatcher on demand and ends it. It does not refer to its service, which may be dropped unclosed."""

    def __init__(self, book: JobBook, limits: ServiceLimits, maker: GrammarMaker) -> None:
        self._book = book
        self._limits = limits
        self._maker = maker
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._is_closed = False
        self.current: Dispatcher | None = None

    @property
    def num_replaced(self) -> int:
        """Workers that ended and got a successor."""
        return 0 if self.current is None else self.current.fleet.num_replaced

    def check_process(self) -> None:
        """Raise RequestError in a fork of the process that made the service: the threads are not in it."""
        if os.getpid() != self._pid:
            raise RequestError("the compile service belongs to the process that this one was forked from; make another")

    def wake(self) -> None:
        """Have the dispatcher look at the book."""
        with self._lock:
            if self.current is None and not self._is_closed:
                self.current = Dispatcher(self._book, self._limits, self._maker)
        if self.current is not None:
            self.current.wake()

    def notice_cancellation(self, future: Future[Matcher]) -> None:
        """A future is done: if its holder cancelled it, nobody waits for the grammar any more."""
        if future.cancelled():
            future.set_running_or_notify_cancel()
            if self._book.leave(future):
                self.wake()

    def close(self) -> None:
        """End everything; does nothing in a fork, whose parent goes on."""
        if os.getpid() != self._pid:
            return
        with self._lock:
            self._is_closed = True
        outcomes = self._book.close()
        if self.current is None:
            for outcome in outcomes:
                resolve(outcome.waiter.future, RequestError(outcome.error))
        else:
            self.current.delivery.fail(outcomes)
            self.current.close()
