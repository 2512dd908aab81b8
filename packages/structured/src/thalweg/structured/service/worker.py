"""The process that compiles grammars, one at a time, and may be killed at any moment."""

from __future__ import annotations

import contextlib
import math
import os
import resource
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from thalweg.interfaces import GrammarSpec, RequestError
from thalweg.structured.service.toolkit import Toolkit
from thalweg.structured.service.wire import Message, receive, send

STACK_BYTES = 8 << 20
"""Half of what threads of the service have, which compile the same grammar once more."""
_NICENESS = 5
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
        head, body = _work(GrammarSpec(**message.head["spec"]), toolkit, settings)
        retires = "out_of_memory" in head or _address_space_bytes() - fresh_bytes > memory_bytes // 4
        send(sock, Message({**head, "event": "result", "retires": retires}, body))
        del message, body
        if retires:
            return


def _work(spec: GrammarSpec, toolkit: Toolkit, settings: Mapping[str, Any]) -> tuple[dict[str, Any], bytes]:
    """The result of one job: whose it is, and the grammar itself if it took long; or why there is none."""
    began = time.process_time()
    try:
        compiled = toolkit.compile(spec)
        is_quick = time.process_time() - began < settings["ship_after_s"]
        return {"origin": toolkit.origin}, b"" if is_quick else toolkit.pack(compiled, spec)
    except Exception as error:
        text = str(error) if isinstance(error, RequestError) else f"unknown error: {type(error).__name__}: {error}"
        if isinstance(error, MemoryError) or "bad_alloc" in text or text.startswith("out of memory"):
            text = f"out of memory: the grammar needs more than the memory_bytes {settings['memory_bytes']} of a worker"
            return {"error": text, "out_of_memory": True}, b""
        return {"error": text}, b""


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
