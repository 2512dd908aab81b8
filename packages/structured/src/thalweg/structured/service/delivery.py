"""The threads that make matchers of what workers compiled, and tell those who wait."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING

from thalweg.interfaces import GrammarSpec, Matcher, RequestError, ThalwegError
from thalweg.structured.service.grammar_maker import GrammarMaker
from thalweg.structured.service.job_book import JobBook
from thalweg.structured.service.jobs import Job, Outcome, resolve
from thalweg.structured.service.threads import CallThreads
from thalweg.structured.service.wire import Message

if TYPE_CHECKING:
    from thalweg.structured.library import CompiledGrammar


class Delivery:
    """Grammars are made by several threads; futures are resolved by one, so that a slow callback delays no grammar."""

    def __init__(self, book: JobBook, maker: GrammarMaker, num_builders: int) -> None:
        self._book = book
        self._maker = maker
        self._builders = CallThreads("thalweg-structured-build", num_builders)
        self._resolver = CallThreads("thalweg-structured-deliver", 1)

    def call(self, function: Callable[[], None]) -> None:
        """Have something else done that takes a while."""
        self._builders.call(function)

    def finish(self, job: Job, message: Message) -> None:
        """Make the grammar that a worker has compiled, and a matcher for everybody who waits for it."""
        self._book.set_finishing(job)
        self._builders.call(partial(self._build, job, message))

    def fail(self, outcomes: Iterable[Outcome]) -> None:
        """Fail the futures of these requests."""
        for outcome in outcomes:
            self._resolve(outcome, RequestError(outcome.error))

    def close(self) -> None:
        """Finish what was given so far and end the threads; callable by any thread, these included."""
        self._builders.close()
        self._resolver.close()

    def _build(self, job: Job, message: Message) -> None:
        try:
            compiled = self._maker.make(job.spec, message)
        except Exception as error:
            self.fail(self._book.fail(job, _text_of(error)))
            return
        outcomes, gone = self._book.finish(job, compiled, time.monotonic())
        del gone  # destroyed here, where nothing waits
        for outcome in outcomes:
            self._resolve(outcome, self._matcher(compiled, outcome.waiter.spec))

    def _matcher(self, compiled: CompiledGrammar, spec: GrammarSpec) -> Matcher | RequestError:
        """A matcher for one of those who wait; or what is wrong with the trigger, which is theirs alone."""
        try:
            return self._maker.matcher(compiled, spec)
        except Exception as error:
            return RequestError(_text_of(error))

    def _resolve(self, outcome: Outcome, result: Matcher | RequestError) -> None:
        self._resolver.call(partial(resolve, outcome.waiter.future, result))


def _text_of(error: Exception) -> str:
    return str(error) if isinstance(error, ThalwegError) else f"unknown error: {type(error).__name__}: {error}"
