"""A compiler of grammars that is finished when a test says so."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Future

from engine_testing.matchers import FunctionMatcher, Grammar

from thalweg.interfaces import GrammarCounts, GrammarSpec, Matcher, RequestError


class FakeCompiler:
    """thalweg.interfaces.GrammarCompiler: the source of a grammar is the name of a function in `grammars`."""

    def __init__(self, eos: int) -> None:
        self._eos = eos
        self.grammars: dict[str, Grammar] = {}
        self.is_patient = True
        """Futures wait for `finish`; else they are done at once."""
        self.asked: list[tuple[str, str, Future[Matcher]]] = []
        """(source, user, future) of every call."""
        self.counts = GrammarCounts()
        self.is_closed = False
        self.on_compile: Callable[[GrammarSpec], None] = lambda spec: None

    def compile(self, spec: GrammarSpec, *, user: str = "") -> Future[Matcher]:
        self.on_compile(spec)
        future: Future[Matcher] = Future()
        self.asked.append((spec.source, user, future))
        if not self.is_patient:
            self._finish(spec.source, future)
        return future

    def cancel(self, pending: Iterable[Future[Matcher]]) -> None:
        for future in pending:
            future.cancel()

    def close(self) -> None:
        self.is_closed = True
        for future in self.waiting():
            future.set_exception(RequestError("the compiler is closed"))

    def waiting(self, source: str | None = None) -> list[Future[Matcher]]:
        """Futures that are not done, of one source or all."""
        return [future for name, _, future in self.asked if source in (None, name) and not future.done()]

    def finish(self, source: str) -> None:
        """Finish what waits for this source."""
        for future in self.waiting(source):
            self._finish(source, future)

    def _finish(self, source: str, future: Future[Matcher]) -> None:
        grammar = self.grammars.get(source)
        if grammar is None:
            future.set_exception(RequestError(f"no rule {source!r}"))
        else:
            future.set_result(FunctionMatcher(grammar, self._eos))
