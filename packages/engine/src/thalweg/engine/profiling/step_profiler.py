"""Profiles some steps of a running engine: asked for on any thread, started and stopped by the engine's own."""

from __future__ import annotations

import enum
import logging
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from thalweg.engine.profiling.request import ProfileRequest
from thalweg.engine.profiling.session import ProfileSession, TorchSession
from thalweg.interfaces import ThalwegError

_LOG = logging.getLogger(__name__)

PICKUP_TIMEOUT_S = 30.0
"""How long a profile waits for the first step."""
FINISH_TIMEOUT_S = 600.0
"""How long it may take from there to the trace file."""


class ProfileBusyError(ThalwegError):
    """Another profile is queued or running."""


class ProfileTimeoutError(ThalwegError):
    """The engine ran no step in time, or not enough of them; the profile is cancelled."""


class ProfileFailedError(ThalwegError):
    """The profiler or the export failed."""


class _State(enum.Enum):
    QUEUED = enum.auto()
    RUNNING = enum.auto()
    EXPORTING = enum.auto()


@dataclass(slots=True)
class _Job:
    request: ProfileRequest
    path: str
    steps_left: int
    state: _State = _State.QUEUED
    is_cancelled: bool = False
    error: str | None = None
    picked_up: threading.Event = field(default_factory=threading.Event)
    done: threading.Event = field(default_factory=threading.Event)


class StepProfiler:
    """One profile at a time. `tick` is the engine's part; it costs one comparison while nothing is asked for."""

    def __init__(
        self,
        make_session: Callable[[], ProfileSession] = TorchSession,
        *,
        pickup_timeout_s: float = PICKUP_TIMEOUT_S,
        finish_timeout_s: float = FINISH_TIMEOUT_S,
    ) -> None:
        self._make_session = make_session
        self._pickup_timeout_s = pickup_timeout_s
        self._finish_timeout_s = finish_timeout_s
        self._lock = threading.Lock()
        self._job: _Job | None = None
        self._session: ProfileSession | None = None
        """The running one; only the engine's thread touches it."""
        self._is_closed = False

    def profile(self, request: ProfileRequest, file_name: str) -> str:
        """Profile the engine's next steps and return the path of the trace, waiting for it.

        Raises ProfileBusyError, ProfileTimeoutError or ProfileFailedError. Not for the engine's thread, which it would
        wait for.
        """
        job = _Job(request, os.path.join(os.path.abspath(request.output_dir), file_name), request.num_steps)
        with self._lock:
            if self._is_closed:
                raise ProfileFailedError("the engine is closed")
            if self._job is not None:
                raise ProfileBusyError(f"a profile is {self._job.state.name.lower()}; there can be one at a time")
            self._job = job
        if not job.picked_up.wait(self._pickup_timeout_s) and self._withdraw(job):
            raise ProfileTimeoutError(
                f"the engine ran no step within {self._pickup_timeout_s:g} s; nothing is profiled"
            )
        if not job.done.wait(self._finish_timeout_s):
            job.is_cancelled = True
            raise ProfileTimeoutError(
                f"the profile did not finish within {self._finish_timeout_s:g} s; {job.steps_left} of "
                f"{request.num_steps} steps are missing"
            )
        if job.error is not None:
            raise ProfileFailedError(job.error)
        return job.path

    def tick(self) -> None:
        """Called by the engine before each step. Never raises: a failed profile is the problem of who asked for it."""
        job = self._job
        if job is None:
            return
        try:
            self._advance(job)
        except Exception as error:
            _LOG.warning("the profile failed", exc_info=True)
            self._session = None
            self._end(job, f"the profiler failed: {type(error).__name__}: {error}")

    def close(self) -> None:
        """Cancel what is queued or running, on the engine's thread; nothing more is accepted."""
        with self._lock:
            self._is_closed = True
            job = self._job
        if job is None or job.state is _State.EXPORTING:
            return
        try:
            self._discard(job, "the engine was closed")
        except Exception:
            _LOG.warning("the profile could not be stopped", exc_info=True)

    def _advance(self, job: _Job) -> None:
        if job.state is _State.QUEUED:
            self._start(job)
        elif job.state is _State.RUNNING:
            job.steps_left -= 1
            if job.is_cancelled:
                self._discard(job, "the profile was cancelled")
            elif not job.steps_left:
                self._stop(job)

    def _start(self, job: _Job) -> None:
        with self._lock:
            if self._job is not job:  # withdrawn just now
                return
            job.state = _State.RUNNING
            job.picked_up.set()
        self._session = self._make_session()
        self._session.start()

    def _stop(self, job: _Job) -> None:
        session, self._session = self._session, None
        assert session is not None
        session.stop()
        job.state = _State.EXPORTING
        # The trace of many steps takes seconds to write; the next step does not wait for that.
        threading.Thread(target=self._export, args=(job, session), name="thalweg-profile-export", daemon=True).start()

    def _export(self, job: _Job, session: ProfileSession) -> None:
        try:
            session.export(job.path)
        except Exception as error:
            _LOG.warning("the profile could not be written to %s", job.path, exc_info=True)
            self._end(job, f"{job.path} could not be written: {type(error).__name__}: {error}")
        else:
            self._end(job)

    def _discard(self, job: _Job, reason: str) -> None:
        session, self._session = self._session, None
        try:
            if session is not None:
                session.stop()
        finally:
            self._end(job, reason)

    def _withdraw(self, job: _Job) -> bool:
        """Whether the job could be taken back before the engine saw it."""
        with self._lock:
            if job.picked_up.is_set():
                return False
            self._job = None
            return True

    def _end(self, job: _Job, error: str | None = None) -> None:
        with self._lock:
            if self._job is job:
                self._job = None
        job.error = error
        job.picked_up.set()
        job.done.set()
