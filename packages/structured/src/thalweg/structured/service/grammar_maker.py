"""What the service's own process makes of compiled grammars; loads the library when it is first needed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from thalweg.interfaces import GrammarSpec, Matcher
from thalweg.structured.service.wire import Message

if TYPE_CHECKING:
    from thalweg.structured.library import CompiledGrammar
    from thalweg.structured.service.toolkit import Toolkit
    from thalweg.structured.vocabulary import Vocabulary


class GrammarMaker:
    """Grammars and matchers of one vocabulary, in any thread."""

    def __init__(self, vocabulary: Vocabulary | Callable[[], Vocabulary], max_rollback: int | None) -> None:
        self._source = vocabulary
        self._max_rollback = max_rollback
        self._lock = threading.RLock()
        self._vocabulary: Vocabulary | None = None
        self._toolkit: Toolkit | None = None

    @property
    def vocabulary(self) -> Vocabulary:
        """The vocabulary, which is made once."""
        with self._lock:
            if self._vocabulary is None:
                self._vocabulary = self._source() if callable(self._source) else self._source
            return self._vocabulary

    @property
    def toolkit(self) -> Toolkit:
        """The library and its form of the vocabulary, which takes seconds the first time."""
        with self._lock:
            if self._toolkit is None:
                from thalweg.structured.service.toolkit import Toolkit

                self._toolkit = Toolkit(self.vocabulary)
            return self._toolkit

    def prepare(self) -> None:
        """Load everything."""
        _ = self.toolkit

    def make(self, spec: GrammarSpec, message: Message) -> CompiledGrammar:
        """The grammar that a worker has compiled: what it sent, or, if it was quick, compiled once more.

        Raises ConfigError if the worker has another version of the library than this process.
        """
        from thalweg.structured.service.shipping import check_origin

        check_origin(message.head["origin"], self.vocabulary)
        if message.body:
            return self.toolkit.unpack(message.body, spec)
        return self.toolkit.compile(spec)

    def matcher(self, compiled: CompiledGrammar, spec: GrammarSpec) -> Matcher:
        """A matcher at its beginning."""
        from thalweg.structured.matcher import MAX_ROLLBACK, GrammarMatcher

        most = MAX_ROLLBACK if self._max_rollback is None else self._max_rollback
        return GrammarMatcher(compiled, spec.trigger_token_ids, spec.bound_token_id, max_rollback=most)
