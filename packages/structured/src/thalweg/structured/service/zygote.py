"""The process that workers are forked from: the library and the vocabulary are loaded once, and a fork takes 10 ms.

It has one thread, works for one service, and ends with all of its workers when that service's process does. Commands
come over a control socket: `FORK` with a number and the socket of the new worker, `KILL` with the number. It says when
it is ready, or why it is not, and when a worker has ended and how.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import os
import selectors
import signal
import socket
import sys
from collections import deque
from collections.abc import Mapping
from typing import Any

from thalweg.interfaces import GrammarSpec
from thalweg.structured.service import worker
from thalweg.structured.service.toolkit import Toolkit
from thalweg.structured.service.wire import COMMAND, FORK, Message, send
from thalweg.structured.vocabulary import Vocabulary

_MOST_FDS = 16
_PR_SET_PDEATHSIG = 1


def main(text: str) -> None:
    """Run the process. text: settings as JSON."""
    settings = json.loads(text)
    control = socket.socket(fileno=settings["control_fd"])
    try:
        with open(settings["vocabulary_fd"], "rb") as file:
            toolkit = Toolkit(Vocabulary.from_bytes(file.read()))
        toolkit.compile(GrammarSpec("regex", "a"))  # what is loaded at the first use is loaded now
        zygote = Zygote(control, toolkit, settings)
    except Exception as error:
        send(control, Message({"event": "failed", "error": f"{type(error).__name__}: {error}"}))
        return
    with contextlib.suppress(ConnectionError):
        zygote.serve()


class Zygote:
    """Forks, kills and reaps."""

    def __init__(self, control: socket.socket, toolkit: Toolkit, settings: Mapping[str, Any]) -> None:
        self._control = control
        self._toolkit = toolkit
        self._settings = settings
        self._pid = os.getpid()
        self._number_of: dict[int, int] = {}
        """Process id -> number, of children that are not reaped: none of these ids belongs to anybody else."""
        self._commands = b""
        self._fds: deque[int] = deque()
        self._selector = selectors.DefaultSelector()
        self._selector.register(control, selectors.EVENT_READ)
        self._wakeups, self._wakeup_fd = self._watch_children()
        self._parent_fd = self._watch_parent(settings["parent_pid"])

    def serve(self) -> None:
        """Work until the service is gone; then kill what is left."""
        gc.collect()
        gc.freeze()  # workers share these objects for longer if nobody touches their counts
        try:
            send(self._control, Message({"event": "ready"}))
            while self._work():
                pass
        finally:
            for pid in self._number_of:
                os.kill(pid, signal.SIGKILL)
            for pid in self._number_of:
                os.waitpid(pid, 0)

    def _watch_children(self) -> tuple[socket.socket, int]:
        """What becomes readable when a child ends, and the descriptor that signals write to."""
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        theirs.setblocking(False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        fd = theirs.detach()
        signal.set_wakeup_fd(fd, warn_on_full_buffer=False)
        self._selector.register(ours, selectors.EVENT_READ)
        return ours, fd

    def _watch_parent(self, pid: int) -> int | None:
        """The socket does not end with the parent if a fork of the parent has it, too."""
        if not hasattr(os, "pidfd_open"):
            return None
        with contextlib.suppress(OSError):
            fd = os.pidfd_open(pid)
            self._selector.register(fd, selectors.EVENT_READ)
            return fd
        return None

    def _work(self) -> bool:
        """Wait for something and do it; False when the service is gone."""
        ready = {key.fileobj for key, _ in self._selector.select()}
        if self._parent_fd in ready or os.getppid() != self._settings["parent_pid"]:
            return False
        if self._wakeups in ready:
            with contextlib.suppress(BlockingIOError):
                self._wakeups.recv(4096)
            self._reap()
        return self._control not in ready or self._obey()

    def _obey(self) -> bool:
        """Read commands and follow them; False when the control socket is closed."""
        data, fds, _, _ = socket.recv_fds(self._control, COMMAND.size * _MOST_FDS, _MOST_FDS)
        self._fds.extend(fds)
        if not data:
            return False
        self._commands += data
        while len(self._commands) >= COMMAND.size:
            command, number = COMMAND.unpack_from(self._commands)
            self._commands = self._commands[COMMAND.size :]
            if command == FORK:
                self._fork(number, socket.socket(fileno=self._fds.popleft()))
            else:
                self._kill(number)
        return True

    def _fork(self, number: int, sock: socket.socket) -> None:
        try:
            pid = os.fork()
        except OSError as error:
            self._tell_gone(number, None, f"a process cannot be forked: {error}")
        else:
            if pid == 0:
                self._become_worker(sock)
            self._number_of[pid] = number
        sock.close()

    def _kill(self, number: int) -> None:
        for pid, known in self._number_of.items():
            if known == number:
                os.kill(pid, signal.SIGKILL)

    def _reap(self) -> None:
        for pid in tuple(self._number_of):
            found, status = os.waitpid(pid, os.WNOHANG)
            if found == pid:
                self._tell_gone(self._number_of.pop(pid), os.waitstatus_to_exitcode(status), "")

    def _tell_gone(self, number: int, status: int | None, error: str) -> None:
        send(self._control, Message({"event": "gone", "worker": number, "status": status, "error": error}))

    def _become_worker(self, sock: socket.socket) -> None:
        """In the new process: let go of everything that is the zygote's, serve, and end without cleaning up."""
        status = 1
        try:
            _end_with_parent(self._pid)
            signal.set_wakeup_fd(-1)  # asyncio of Python 3.12 has done so at the fork
            os.close(self._wakeup_fd)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            self._selector.close()
            self._wakeups.close()
            self._control.close()
            if self._parent_fd is not None:
                os.close(self._parent_fd)
            _mute_standard_error()
            worker.serve(sock, self._toolkit, self._settings)
            status = 0
        except ConnectionError:
            status = 0  # nobody waits for the result
        finally:
            os._exit(status)


def _end_with_parent(pid: int) -> None:
    """Have the kernel kill this process when its parent ends, where it can, and end now if that has happened."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != pid:
        os._exit(1)


def _mute_standard_error() -> None:
    """What the library says about a grammar, it says again where the grammar is used, or in the error."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 2)
    os.close(null)
