"""What the CPU backend has in place of a device library's check of blocking calls."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from thalweg.interfaces import ConfigError, InvariantError
from thalweg.kernels.sync_guard import MODES, SyncGuard

if TYPE_CHECKING:
    from thalweg.kernels.backends.fifo import LaunchedWork


class HostSyncError(InvariantError, RuntimeError):
    """The host blocked on the device where that is forbidden. On a GPU torch raises a plain RuntimeError for it."""


class FakeSyncMode:
    """The mode, kept in an attribute."""

    def __init__(self) -> None:
        self._mode = "default"

    def get(self) -> str:
        """One of `MODES`."""
        return self._mode

    def set(self, mode: str) -> None:
        """Raises ConfigError for an unknown mode."""
        if mode not in MODES:
            raise ConfigError(f"mode is {mode!r}; {', '.join(MODES)} are accepted")
        self._mode = mode


class HostSync:
    """A mode, its guard, and the check that blocking calls make.

    Launched work runs at any time, so the mode of that moment says nothing about it. What counts for work is the mode
    it was launched under, and its own scopes.
    """

    def __init__(self) -> None:
        self.mode = FakeSyncMode()
        self.guard = SyncGuard(self.mode.get, self.mode.set)

    def is_forbidden(self, work: LaunchedWork[Any] | None) -> bool:
        """Whether the calling thread must not block. work: what it is running, None on a host thread."""
        return self._mode_for(work) == "error"

    def check(self, work: LaunchedWork[Any] | None) -> None:
        """Raise HostSyncError, or warn, as the mode says."""
        mode = self._mode_for(work)
        if mode == "error":
            raise HostSyncError("the host would block on the device inside no_host_sync; an event may be waited for")
        if mode == "warn":
            warnings.warn("the host blocks on the device", stacklevel=3)

    def _mode_for(self, work: LaunchedWork[Any] | None) -> str:
        if work is None:
            return self.mode.get()
        if self.guard.enabled and self.guard.intent is not None:
            return "default" if self.guard.intent == "allow" else "error"
        return "error" if work.forbids_sync else "default"
