"""Where the host must not block on the device: scopes that switch a device library's check of that on and off.

The check itself belongs to the device library and is one mode for the whole process; here it is derived from what every
thread wants. It finds blocking copies and synchronisations; waiting for an event is not one.
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any, Literal, ParamSpec, TypeVar

import torch

from thalweg.interfaces import ConfigError, InvariantError

Intent = Literal["forbid", "allow"]
P = ParamSpec("P")
R = TypeVar("R")

MODES = ("default", "warn", "error")
"""Names of torch's modes, by their numbers: say nothing, warn, raise."""


class SyncGuard:
    """Forbid and allow scopes of all threads over one mode.

    The innermost scope of a thread is what the thread wants. The mode is "default" while any thread wants to block,
    else "error" while any wants it forbidden: an error missed is better than one in a thread that may block. When the
    first scope opens the mode found is kept, and set again when the last one closes.

    get_mode, set_mode: the mode, in whatever type the library has; "default" and "error" must be accepted. They are not
    called before the first scope opens. enabled: False leaves the mode alone; may be changed at any time.
    """

    def __init__(self, get_mode: Callable[[], Any], set_mode: Callable[[Any], None], enabled: bool = True) -> None:
        self._get_mode = get_mode
        self._set_mode = set_mode
        self._enabled = enabled
        self._lock = threading.Lock()
        self._local = threading.local()
        self._wanted: dict[Intent, int] = {"forbid": 0, "allow": 0}
        """Number of threads that want it."""
        self._is_driving = False
        self._baseline: Any = None

    def forbid(self) -> SyncScope:
        """A scope in which blocking on the device is an error. Context manager or decorator."""
        return SyncScope(self, "forbid")

    def allow(self) -> SyncScope:
        """A scope in which it is fine, whatever stands around it. Context manager or decorator."""
        return SyncScope(self, "allow")

    @property
    def intent(self) -> Intent | None:
        """What the calling thread wants: the kind of its innermost scope, None outside of all."""
        stack = self._stack()
        return stack[-1] if stack else None

    @property
    def enabled(self) -> bool:
        return self._enabled

    @enabled.setter
    def enabled(self, value: bool) -> None:
        with self._lock:
            self._enabled = value
            self._drive()

    def enter(self, intent: Intent) -> None:
        """Open a scope on the calling thread."""
        before = self.intent
        self._stack().append(intent)
        try:
            self._change(before, intent)
        except BaseException:
            self._stack().pop()
            raise

    def leave(self, intent: Intent) -> None:
        """Close the calling thread's innermost scope of this kind. Raises InvariantError when there is none."""
        stack = self._stack()
        if intent not in stack:
            raise InvariantError(
                f"thread {threading.current_thread().name} leaves a scope ({intent}) that it did not enter; scopes are "
                "left by the thread that entered them"
            )
        before = self.intent
        del stack[len(stack) - 1 - stack[::-1].index(intent)]
        self._change(before, self.intent)

    def _stack(self) -> list[Intent]:
        stack: list[Intent] | None = getattr(self._local, "stack", None)
        if stack is None:
            stack = self._local.stack = []
        return stack

    def _change(self, before: Intent | None, after: Intent | None) -> None:
        with self._lock:
            self._count(before, after)
            try:
                self._drive()
            except BaseException:
                self._count(after, before)
                raise

    def _count(self, before: Intent | None, after: Intent | None) -> None:
        if before is not None:
            self._wanted[before] -= 1
        if after is not None:
            self._wanted[after] += 1

    def _drive(self) -> None:
        """Bring the mode in line. The caller holds the lock: no thread runs on with a mode that is too strict."""
        mode = "default" if self._wanted["allow"] else "error" if self._wanted["forbid"] else None
        if mode is not None and self._enabled:
            if not self._is_driving:
                baseline = self._get_mode()
                self._set_mode(mode)
                self._baseline, self._is_driving = baseline, True
            else:
                self._set_mode(mode)
        elif self._is_driving:
            self._is_driving = False
            self._set_mode(self._baseline)


class SyncScope:
    """A scope of a guard, for `with` or as a decorator; it keeps no state, so it can be entered again anywhere."""

    def __init__(self, guard: SyncGuard, intent: Intent) -> None:
        self._guard = guard
        self._intent: Intent = intent

    def __enter__(self) -> None:
        self._guard.enter(self._intent)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._guard.leave(self._intent)

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """`function`, with every call inside the scope."""
        if inspect.isgeneratorfunction(function) or inspect.iscoroutinefunction(function):
            raise ConfigError(f"{function.__qualname__} suspends itself; a scope decorates functions that run through")

        @functools.wraps(function)
        def scoped(*args: P.args, **kwargs: P.kwargs) -> R:
            with self:
                return function(*args, **kwargs)

        return scoped


def cuda_sync_mode() -> tuple[Callable[[], str], Callable[[str], None]]:
    """(get, set) of torch.cuda's check of blocking calls, by the names in `MODES`. Calling them initialises CUDA."""

    def get() -> str:
        return MODES[torch.cuda.get_sync_debug_mode()]

    def set_(mode: str) -> None:
        torch.cuda.set_sync_debug_mode(mode)

    return get, set_
