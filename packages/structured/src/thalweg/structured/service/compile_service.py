"""Compiles grammars in processes that can be killed, and gives every request a matcher of its own."""

from __future__ import annotations

import logging
import time
import weakref
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING

from thalweg.interfaces import ConfigError, GrammarCounts, GrammarSpec, Matcher, RequestError, shown
from thalweg.structured.lint import check
from thalweg.structured.service.cache import RecentKeys
from thalweg.structured.service.grammar_maker import GrammarMaker
from thalweg.structured.service.job_book import JobBook
from thalweg.structured.service.jobs import key_of
from thalweg.structured.service.lazy_dispatcher import LazyDispatcher
from thalweg.structured.service.limits import MIB, ServiceLimits

if TYPE_CHECKING:
    from thalweg.structured.vocabulary import Vocabulary

logger = logging.getLogger(__name__)

_REMEMBERED_WARNINGS = 10_000
"""Grammars whose warnings are not logged again."""


class CompileService:
    """Satisfies `thalweg.interfaces.GrammarCompiler`; every method may be called by any thread.

    Nothing is started before the first compilation. From then on there are a process that workers are forked from, the
    workers, and a few threads, which end with `close`, with this object, or with the interpreter. Callbacks of futures
    are called by one of the threads, one after another.

    vocabulary: or what makes it, which is called by one of the threads.
    For the other arguments see `ServiceLimits`. Raises ConfigError for a limit that cannot be.
    """

    def __init__(
        self,
        vocabulary: Vocabulary | Callable[[], Vocabulary],
        *,
        num_workers: int = 2,
        timeout_s: float = 20.0,
        ship_after_s: float = 2.0,
        cache_bytes: int = 512 * MIB,
        max_pending_per_user: int = 64,
        max_source_bytes: int = 256 * 1024,
        memory_bytes: int = 4096 * MIB,
        max_rollback: int | None = None,
    ) -> None:
        self._limits = ServiceLimits(
            num_workers=num_workers,
            timeout_s=timeout_s,
            ship_after_s=ship_after_s,
            cache_bytes=cache_bytes,
            max_pending_per_user=max_pending_per_user,
            max_source_bytes=max_source_bytes,
            memory_bytes=memory_bytes,
            max_rollback=max_rollback,
        )
        self._maker = GrammarMaker(vocabulary, max_rollback)
        self._book = JobBook(self._limits)
        self._dispatcher = LazyDispatcher(self._book, self._limits, self._maker)
        self._warned = RecentKeys(_REMEMBERED_WARNINGS)
        self._finalizer = weakref.finalize(self, self._dispatcher.close)

    @property
    def counts(self) -> GrammarCounts:
        """Totals so far."""
        return replace(self._book.counts, num_workers_replaced=self._dispatcher.num_replaced)

    def compile(self, spec: GrammarSpec, *, user: str = "") -> Future[Matcher]:
        """Start compiling; the future fails with RequestError for a grammar that cannot be served.

        A grammar that is kept is served at once, by a future that is done. Equal ones are compiled once.
        user: who waits for it; users take turns, and none has all workers while another one waits.
        Raises RequestError at once for a source that is too long or that `lint.check` refuses, for too many grammars
        of one user that wait, and after `close`; ConfigError for arguments of another type.
        """
        if not isinstance(spec, GrammarSpec):
            raise ConfigError(f"spec is {shown(spec)}; it must be a GrammarSpec")
        if not isinstance(user, str):
            raise ConfigError(f"user is {shown(user)}; it must be a string")
        self._dispatcher.check_process()
        compiled = self._book.find(spec)
        if compiled is not None:
            return _done(self._maker.matcher(compiled, spec))
        if not self._book.is_in_flight(spec):
            self._check_source(spec)
        future = self._book.submit(spec, user, time.monotonic())
        future.add_done_callback(self._dispatcher.notice_cancellation)
        self._dispatcher.wake()
        return future

    def cancel(self, pending: Iterable[Future[Matcher]]) -> None:
        """Give up on grammars nobody waits for; their futures are cancelled. `Future.cancel` does the same."""
        for future in pending:
            future.cancel()

    def close(self) -> None:
        """End the processes and threads and fail what is pending; waits until they have ended."""
        self._dispatcher.close()

    def __enter__(self) -> CompileService:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _check_source(self, spec: GrammarSpec) -> None:
        most = self._limits.max_source_bytes
        size = len(spec.source) if len(spec.source) > most else len(spec.source.encode())
        if size > most:
            raise RequestError(f"the {spec.kind} source has {size} bytes or more; max_source_bytes is {most}")
        warnings = check(spec)
        if warnings and self._warned.add(hash(key_of(spec))):
            for warning in warnings:
                logger.warning("grammar of kind %s: %s", spec.kind, warning)


def _done(matcher: Matcher) -> Future[Matcher]:
    future: Future[Matcher] = Future()
    future.set_result(matcher)
    return future
