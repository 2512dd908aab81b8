"""An HTTP server through which a running engine can be profiled: GET or POST /profile.

It binds to this machine only, because whoever reaches it can write files. Off unless `profile_port` is set.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import sys
import tempfile
import threading
from datetime import datetime
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import urlsplit

from thalweg.engine.profiling.request import ProfileRequest
from thalweg.engine.profiling.step_profiler import (
    ProfileBusyError,
    ProfileFailedError,
    ProfileTimeoutError,
    StepProfiler,
)

_LOG = logging.getLogger(__name__)

HOST = "127.0.0.1"
MAX_BODY_BYTES = 1 << 16
_MAX_LENGTH_DIGITS = 18
"""Python refuses to convert thousands of digits, which a header may have."""
_SOCKET_TIMEOUT_S = 30.0
_POLL_S = 0.1
"""How soon the server notices that it is to end."""


class ProfileServer:
    """Answers on a daemon thread; the engine calls `tick` before each step and `close` at its end."""

    def __init__(self, port: int, profiler: StepProfiler, *, output_dir: str | None, device: str, rank: int) -> None:
        """Bind and start to serve.

        port: 0 takes a free one. output_dir: of traces whose request names none; None = the system's temporary one.
        device: what the file name calls the device, such as "gpu0". Raises OSError when the port cannot be had.
        """
        self._profiler = profiler
        self._output_dir = tempfile.gettempdir() if output_dir is None else output_dir
        self._name = f"profile-{_own_address()}-{device}-rank{rank}"
        self._server = _Server((HOST, port), _Handler)
        self._server.owner = self
        threading.Thread(
            target=self._server.serve_forever, args=(_POLL_S,), name="thalweg-profile-server", daemon=True
        ).start()

    @classmethod
    def start(
        cls, port: int, *, output_dir: str | None = None, device: str = "cpu0", rank: int = 0, **options: Any
    ) -> Self | None:
        """A server, or None, and a warning in the log, when the port cannot be had: an engine runs without it too."""
        try:
            server = cls(port, StepProfiler(**options), output_dir=output_dir, device=device, rank=rank)
        except (OSError, OverflowError) as error:
            _LOG.warning("the profile server is off: port %d cannot be used (%s)", port, error)
            return None
        _LOG.info("the profile server listens on %s:%d", HOST, server.port)
        return server

    @property
    def port(self) -> int:
        """Where it listens, on 127.0.0.1."""
        return int(self._server.server_address[1])

    def tick(self) -> None:
        """Called by the engine's thread before each step."""
        self._profiler.tick()

    def close(self) -> None:
        """Stop serving; a profile in progress is cancelled. On the engine's thread."""
        self._profiler.close()
        self._server.shutdown()
        self._server.server_close()

    def answer(self, query: str, body: bytes) -> tuple[HTTPStatus, dict[str, str]]:
        """Status and document for one request; waits for the profile."""
        try:
            request = ProfileRequest.parse(query, body, self._output_dir)
            os.makedirs(request.output_dir, exist_ok=True)
        except ValueError as error:
            return HTTPStatus.BAD_REQUEST, {"error": str(error)}
        except OSError as error:
            return HTTPStatus.BAD_REQUEST, {"error": f"output_dir cannot be used: {error}"}
        file_name = f"{self._name}-{datetime.now():%Y%m%d-%H%M%S-%f}.json"
        try:
            return HTTPStatus.OK, {"path": self._profiler.profile(request, file_name)}
        except ProfileBusyError as error:
            return HTTPStatus.CONFLICT, {"error": str(error)}
        except ProfileTimeoutError as error:
            return HTTPStatus.SERVICE_UNAVAILABLE, {"error": str(error)}
        except ProfileFailedError as error:
            return HTTPStatus.INTERNAL_SERVER_ERROR, {"error": str(error)}


class _Server(ThreadingHTTPServer):
    owner: ProfileServer

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log what would be printed otherwise; that a client left before its answer came is nothing to report."""
        has_left = isinstance(sys.exception(), ConnectionError)
        _LOG.log(logging.DEBUG if has_left else logging.WARNING, "a request was not answered", exc_info=True)


class _Handler(BaseHTTPRequestHandler):
    timeout = _SOCKET_TIMEOUT_S
    server: _Server

    def do_GET(self) -> None:
        address = urlsplit(self.path)
        if address.path != "/profile":
            self._send(HTTPStatus.NOT_FOUND, {"error": f"there is no {address.path}; there is /profile"})
            return
        length = self.headers.get("Content-Length", "0")
        if not length.isascii() or not length.isdigit() or self.headers.get("Transfer-Encoding") is not None:
            self._send(HTTPStatus.BAD_REQUEST, {"error": "the body needs a Content-Length"})
        elif len(length) > _MAX_LENGTH_DIGITS or int(length) > MAX_BODY_BYTES:
            error = f"the body has {length} bytes; at most {MAX_BODY_BYTES} are read"
            self._send(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, {"error": error})
        else:
            self._send(*self.server.owner.answer(address.query, self.rfile.read(int(length))))

    do_POST = do_GET

    def log_message(self, format: str, *args: Any) -> None:
        _LOG.debug(format, *args)

    def _send(self, status: HTTPStatus, document: dict[str, str]) -> None:
        content = json.dumps(document).encode() + b"\n"
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


def _own_address() -> str:
    """An address of this host, for file names that many hosts write into one directory."""
    try:
        return socket.gethostbyname(socket.gethostname())
    except OSError:
        return HOST
