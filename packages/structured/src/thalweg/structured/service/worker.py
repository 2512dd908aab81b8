"""The process that compiles grammars, one at a time, and may be killed at any moment."""

from __future__ import annotations

import contextlib
import math
import os
import resource
import signal
import socket
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from thalweg.interfaces import GrammarSpec, RequestError
from thalweg.structured.service.limits import MOST_REPEATED_S
from thalweg.structured.service.toolkit import Toolkit
from thalweg.structured.service.wire import Message, receive, send

STACK_BYTES = 8 << 20
"""Half of what threads of the service have, which compile the same grammar once more."""
_NICENESS = 5
_PACKING_S = 0.5
_OUT_OF_MEMORY_SCORE = "900"


def serve(sock: socket.socket, toolkit: Toolkit, settings: Mapping[str, Any]) -> None:
    """Compile what comes over the socket until it is closed, or until a successor with less memory is better."""
    _step_back()
    fresh_bytes = _address_space_bytes()
    memory_bytes = int(settings["memory_bytes"])
    _limit(resource.RLIMIT_CORE, 0)
    _limit(resource.RLIMIT_STACK, STACK_BYTES)
    if fresh_bytes:
        _limit(resource.RLIMIT_AS, fresh_bytes + memory_bytes)
    send(sock, Message({"event": "hello", "pid": os.getpid()}))
    while (message := receive(sock)) is not None:
        _limit_cpu(float(message.head["cpu_s"]))
        head, body = _work(sock, GrammarSpec(**message.head["spec"]), toolkit, settings)
        retires = "out_of_memory" in head or _address_space_bytes() - fresh_bytes > memory_bytes // 4
        send(sock, Message({**head, "event": "result", "retires": retires}, body))
        del message, body
        if retires:
            return


def _work(
    sock: socket.socket, spec: GrammarSpec, toolkit: Toolkit, settings: Mapping[str, Any]
) -> tuple[dict[str, Any], bytes]:
    """The result of one job: what it took, and the grammar itself if it took long; or why there is none.

    A grammar that took long is announced first, because its bytes may take far longer, and more memory.
    """
    began = time.process_time()
    head: dict[str, Any] = {}
    try:
        compiled = toolkit.compile(spec)
        head = {"origin": toolkit.origin, "seconds": time.process_time() - began}
        if head["seconds"] < settings["ship_after_s"]:
            return head, b""
        send(sock, Message({**head, "event": "compiled"}))
        with _packing_limit(head["seconds"]):
            return head, toolkit.pack(compiled, spec)
    except ConnectionError:
        raise
    except Exception as error:
        text = str(error) if isinstance(error, RequestError) else f"unknown error: {type(error).__name__}: {error}"
        if isinstance(error, MemoryError) or "bad_alloc" in text or text.startswith("out of memory"):
            text = f"out of memory: the grammar needs more than the memory_bytes {settings['memory_bytes']} of a worker"
            return {**head, "error": text, "out_of_memory": True}, b""
        return {**head, "error": text}, b""


@contextlib.contextmanager
def _packing_limit(compile_s: float) -> Iterator[None]:
    """End this process when making bytes takes longer than compiling again would, if that is an option.

    The bytes of some grammars, such as those of large objects in each other, grow with the square of their size.
    """
    if compile_s <= MOST_REPEATED_S:
        signal.setitimer(signal.ITIMER_PROF, max(_PACKING_S, 2 * compile_s))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def _step_back() -> None:
    """Let others go first: the steps of an engine, and, where memory ends, everything else."""
    os.nice(_NICENESS)
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(_OUT_OF_MEMORY_SCORE)


def _limit_cpu(seconds: float) -> None:
    """Let the kernel end this process after so many more seconds of work, whatever becomes of the service."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    _limit(resource.RLIMIT_CPU, math.ceil(usage.ru_utime + usage.ru_stime + seconds))


def _limit(which: int, value: int) -> None:
    """Set a soft limit, below the hard one, without ever raising one of the stack."""
    soft, hard = resource.getrlimit(which)
    bounds = [value]
    if hard != resource.RLIM_INFINITY:
        bounds.append(hard)
    if which == resource.RLIMIT_STACK and soft != resource.RLIM_INFINITY:
        bounds.append(soft)
    resource.setrlimit(which, (min(bounds), hard))


def _address_space_bytes() -> int:
    """Of this process; 0 where the system does not tell."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
    except OSError:
        return 0
    return pages * resource.getpagesize()
