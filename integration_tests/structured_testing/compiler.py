"""Compiles grammars at once in the calling thread, or when a test says so: what an engine needs without processes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass, field, replace

from thalweg.interfaces import GrammarCounts, GrammarSpec, Matcher, RequestError
from thalweg.structured import GrammarMatcher, Vocabulary, compile_grammar


@dataclass
class LocalCompiler:
    """Satisfies `thalweg.interfaces.GrammarCompiler`. Each grammar is compiled once, whoever asks.

    is_held: whether the grammar of a specification is kept back until `release`. wrap: what is made of each matcher.
    """

    vocabulary: Vocabulary
    is_held: Callable[[GrammarSpec], bool] = lambda spec: False
    wrap: Callable[[GrammarSpec, Matcher], Matcher] = lambda spec, matcher: matcher
    num_cancelled: int = 0
    is_closed: bool = False
    _matchers: dict[GrammarSpec, Matcher | RequestError] = field(default_factory=dict)
    _held: list[tuple[GrammarSpec, Future[Matcher]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._info = self.vocabulary.tokenizer_info()

    @property
    def counts(self) -> GrammarCounts:
        return replace(GrammarCounts(), num_cancelled=self.num_cancelled)

    def matcher(self, spec: GrammarSpec) -> Matcher:
        """A new one, never kept back. Raises RequestError for a grammar that cannot be compiled."""
        if spec not in self._matchers:
            try:
                compiled = compile_grammar(spec, self._info)
                self._matchers[spec] = GrammarMatcher(compiled, spec.trigger_token_ids, spec.bound_token_id)
            except RequestError as error:
                self._matchers[spec] = error
        found = self._matchers[spec]
        if isinstance(found, RequestError):
            raise found
        return found.fresh()

    def compile(self, spec: GrammarSpec, *, user: str = "") -> Future[Matcher]:
        future: Future[Matcher] = Future()
        self._held.append((spec, future))
        self.release(lambda held: held == spec and not self.is_held(spec))
        return future

    def release(self, is_meant: Callable[[GrammarSpec], bool] = lambda spec: True) -> None:
        """Compile what was kept back."""
        meant = [(spec, future) for spec, future in self._held if is_meant(spec)]
        self._held = [(spec, future) for spec, future in self._held if not is_meant(spec)]
        for spec, future in meant:
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(self.wrap(spec, self.matcher(spec)))
            except RequestError as error:
                future.set_exception(error)

    def cancel(self, pending: Iterable[Future[Matcher]]) -> None:
        self.num_cancelled += sum(future.cancel() for future in pending)

    def close(self) -> None:
        self.is_closed = True
