"""Requests whose grammar is being compiled: their prompts wait here, outside of the scheduler."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import CancelledError, Future
from typing import NamedTuple

from thalweg.engine.constraint import Constraint
from thalweg.engine.requests import RequestState
from thalweg.interfaces import GrammarCompiler, GrammarCounts, InvariantError, Matcher, RequestError

INSTALL = "pip install 'thalweg-engine[structured]'"


class Arrival(NamedTuple):
    """A request whose grammar is there, or never will be."""

    request: RequestState
    error: str | None
    """Why it never will; None = every output of the request has its constraint."""


class Grammars:
    """Compiles the grammars of requests, off the step path.

    Used from the engine's thread; the compiler completes its futures on threads of its own. make_compiler: called for
    the first request that has a grammar. None: grammars cannot be compiled, and such requests are refused.
    """

    def __init__(self, make_compiler: Callable[[], GrammarCompiler] | None = None) -> None:
        self._make_compiler = make_compiler
        self._compiler: GrammarCompiler | None = None
        self._pending: dict[RequestState, Future[Matcher]] = {}
        self._compiling: set[RequestState] = set()
        """Those of them whose futures are not done; threads of the compiler take them out."""
        self._done: deque[RequestState] = deque()
        """Requests whose futures are done, forgotten ones among them; threads of the compiler put them in."""
        self._has_done = threading.Event()
        """Set after each of them. Waiting takes nothing out, so an interrupt can lose nothing."""
        self._last_counts = GrammarCounts()

    def __len__(self) -> int:
        """Requests that wait here."""
        return len(self._pending)

    @property
    def num_compiling(self) -> int:
        """How many of them still wait for their compiler; the others leave with the next `pump`."""
        return len(self._compiling)

    @property
    def counts(self) -> GrammarCounts:
        """Totals of the compiler, its last ones after `close`; for any thread."""
        compiler = self._compiler
        return self._last_counts if compiler is None else compiler.counts

    def submit(self, request: RequestState, user: str) -> None:
        """Start compiling the grammar of a request, on behalf of this user.

        Raises RequestError for a grammar that is wrong by itself, for too many of one user, and without a compiler.
        """
        spec = request.params.structured
        if spec is None:
            raise InvariantError(f"request {request.request_id!r} has no grammar to compile")
        future = self._started().compile(spec, user=user)
        self._pending[request] = future
        self._compiling.add(request)
        future.add_done_callback(lambda _: self._note_done(request))

    def pump(self) -> list[Arrival]:
        """The requests that have stopped waiting since the last call, in the order in which they did."""
        arrived = []
        self._has_done.clear()
        while self._done:
            request = self._done.popleft()
            future = self._pending.pop(request, None)
            if future is not None:
                arrived.append(_arrival(request, future))
        return arrived

    def wait(self, timeout_s: float) -> None:
        """Return when a request has stopped waiting, or after so many seconds."""
        self._has_done.wait(timeout_s)

    def forget(self, requests: Iterable[RequestState]) -> None:
        """Nobody waits for the grammars of these requests any more."""
        cancelled = []
        for request in requests:
            future = self._pending.pop(request, None)
            if future is not None:
                self._compiling.discard(request)
                cancelled.append(future)
        if cancelled and self._compiler is not None:
            self._compiler.cancel(cancelled)

    def close(self) -> None:
        """Forget everything and end the compiler; no grammar can be compiled any more."""
        self._pending.clear()
        self._compiling.clear()
        self._make_compiler = None
        if self._compiler is not None:
            self._compiler.close()
            self._last_counts = self._compiler.counts
            self._compiler = None

    def _started(self) -> GrammarCompiler:
        if self._compiler is None:
            if self._make_compiler is None:
                raise RequestError(f"structured is given, and this engine compiles no grammars; it needs: {INSTALL}")
            self._compiler = self._make_compiler()
        return self._compiler

    def _note_done(self, request: RequestState) -> None:
        self._compiling.discard(request)
        self._done.append(request)
        self._has_done.set()


def _arrival(request: RequestState, future: Future[Matcher]) -> Arrival:
    """Every output gets a matcher of its own. What goes wrong ends this request, whatever it is."""
    try:
        matcher = future.result(timeout=0)
        for output in request.outputs:
            output.constraint = Constraint(matcher.fresh())
    except CancelledError:
        return Arrival(request, "compiling its grammar was cancelled")
    except RequestError as error:
        return Arrival(request, str(error))
    except Exception as error:
        return Arrival(request, f"its grammar cannot be used: {type(error).__name__}: {error}")
    return Arrival(request, None)
