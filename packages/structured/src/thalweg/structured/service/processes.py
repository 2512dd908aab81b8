"""The service's side of its processes: the zygote, and workers that are forked from it on demand."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile

from thalweg.structured.service.jobs import Job
from thalweg.structured.service.limits import ServiceLimits
from thalweg.structured.service.wire import COMMAND, FORK, KILL, Channel

_BOOT = """
import signal, sys
signal.signal(signal.SIGINT, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
sys.path[:] = sys.argv[2:]
from thalweg.structured.service.zygote import main
main(sys.argv[1])
"""
_ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
"""Libraries that start threads when they are loaded would make forks unsafe."""


class WorkerHandle:
    """A process that compiles one job at a time."""

    def __init__(self, number: int, channel: Channel) -> None:
        self.number = number
        self.channel = channel
        self.pid: int | None = None
        """Of the process, which says it when it runs."""
        self.job: Job | None = None
        self.killed_at = 0.0
        """When its end was asked for or noticed; it is gone when the zygote says so."""

    @property
    def is_ready(self) -> bool:
        """Whether it can be given a job."""
        return self.pid is not None


class ZygoteHandle:
    """A running zygote process. Its methods raise ConnectionError when it is gone."""

    def __init__(self, vocabulary: bytes, limits: ServiceLimits) -> None:
        """Start the process; it says later whether it is ready. Raises OSError if there is no room for one."""
        self._next_number = 0
        self.is_ready = False
        ours, theirs = socket.socketpair()
        with contextlib.ExitStack() as stack:
            stack.callback(theirs.close)
            stack.callback(ours.close)
            with tempfile.TemporaryFile() as file:
                file.write(vocabulary)
                file.seek(0)
                self._process = _start(theirs, file.fileno(), limits)
            stack.pop_all()
        theirs.close()
        self.channel = Channel(ours)
        self._socket = ours

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    def fork(self) -> WorkerHandle:
        """Ask for another worker; it says over its channel when it runs."""
        ours, theirs = socket.socketpair()
        number = self._next_number
        self._next_number = (self._next_number + 1) % (1 << 32)
        try:
            self._command(FORK, number, [theirs.fileno()])
        except ConnectionError:
            ours.close()
            raise
        finally:
            theirs.close()
        return WorkerHandle(number, Channel(ours))

    def kill(self, worker: WorkerHandle) -> None:
        """Ask for a worker's end, which the zygote confirms unless it has done so already."""
        self._command(KILL, worker.number, [])

    def _command(self, command: bytes, number: int, fds: list[int]) -> None:
        data = COMMAND.pack(command, number)
        try:
            sent = socket.send_fds(self._socket, [data], fds)
        except BlockingIOError:
            sent = 0
        if sent != len(data):  # thousands of commands were not read
            raise ConnectionAbortedError("the zygote does not read its commands")

    def end(self, patience_s: float = 5.0) -> int:
        """End the process and the workers; returns its exit status.

        A zygote that notices within `patience_s` kills and reaps its workers. Another one is killed, and the kernel
        kills the workers. One that is not ready has none.
        """
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self.channel.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._process.wait(patience_s if self.is_ready else 0)
        self._process.kill()
        return self._process.wait()


def _start(control: socket.socket, vocabulary_fd: int, limits: ServiceLimits) -> subprocess.Popen[bytes]:
    if not sys.executable:
        raise OSError("sys.executable does not name a Python interpreter, which compile processes are started with")
    fds = [_high_copy(control.fileno())]
    try:
        fds.append(_high_copy(vocabulary_fd))
        settings = {
            "control_fd": fds[0],
            "vocabulary_fd": fds[1],
            "parent_pid": os.getpid(),
            "memory_bytes": limits.memory_bytes,
            "ship_after_s": limits.ship_after_s,
        }
        command = [sys.executable, "-c", _BOOT, json.dumps(settings), *map(str, sys.path)]
        return _popen(command, fds)
    finally:
        for fd in fds:
            os.close(fd)


def _popen(command: list[str], fds: list[int]) -> subprocess.Popen[bytes]:
    """Start a process that a Ctrl-C in the terminal does not reach, not even before its first line."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=None if _is_open(2) else subprocess.DEVNULL,
            pass_fds=fds,
            env={**os.environ, **dict.fromkeys(_ONE_THREAD, "1")},
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _high_copy(fd: int) -> int:
    """Above the standard streams, where the new process has its own."""
    return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3)


def _is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True
