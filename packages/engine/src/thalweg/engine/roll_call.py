"""Which ranks of a group are still there: a side channel that is used only once a collective has failed.

Every rank listens on a port of its own and answers from a thread of its own, so it answers while its main thread waits
in a collective or computes, and no rank depends on another one being alive, not even on the one that hosts the store.
A killed process refuses the connection; a stopped one accepts it and says nothing. One JSON line each way.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import logging
import socket
import threading
import time
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

_LOG = logging.getLogger(__name__)
_MAX_LINE = 65_536
_PATIENCE_S = 5.0
"""How long a connection may take to say what it wants."""


class Endpoint(NamedTuple):
    """Where a rank listens."""

    host: str
    port: int


class Answer(NamedTuple):
    """What became of the question to a peer."""

    position: int | None
    """Collectives it has joined; None if it did not answer."""
    is_gone: bool
    """Nobody listens there any more: its process has ended, or it has left the group."""


class Verdict(NamedTuple):
    """What a rank concluded: who is missing and, if that rank said so itself, why."""

    ranks: tuple[int, ...]
    reason: str


class RollCall:
    """One rank's end of the side channel.

    host: the address at which the other ranks reach this one. It listens at once and answers after `open`.
    """

    def __init__(self, rank: int, host: str) -> None:
        self._rank = rank
        self._token = ""
        self._peers: dict[int, Endpoint] = {}
        self._heard: set[int] = set()
        self._verdict: Verdict | None = None
        self.position = 0
        """Collectives this rank has joined so far; told to whoever asks."""
        family = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0][0]
        self._listener = socket.socket(family, socket.SOCK_STREAM)
        self._listener.bind((host, 0))
        self._listener.listen(socket.SOMAXCONN)
        self.endpoint = Endpoint(host, self._listener.getsockname()[1])

    @property
    def peers(self) -> list[int]:
        """The other ranks."""
        return list(self._peers)

    def open(self, peers: Mapping[int, Endpoint], token: str) -> None:
        """Start answering. peers: the other ranks. token: what all ranks of this group, and nobody else, know."""
        self._peers = dict(peers)
        self._token = token
        threading.Thread(target=self._answer_all, name="thalweg-roll-call", daemon=True).start()

    @property
    def heard(self) -> frozenset[int]:
        """Ranks that called: their collective failed, and they were alive then."""
        return frozenset(self._heard)

    @property
    def verdict(self) -> Verdict | None:
        """The first verdict that another rank told us."""
        return self._verdict

    def call(self, timeout_s: float) -> dict[int, Answer]:
        """Ask every peer where it is."""
        return self._ask({"kind": "where"}, self._peers, timeout_s)

    def tell(self, verdict: Verdict, ranks: Iterable[int], timeout_s: float) -> None:
        """Pass a verdict on to these ranks and wait until they have it."""
        peers = {rank: self._peers[rank] for rank in ranks}
        self._ask({"kind": "verdict", "ranks": list(verdict.ranks), "reason": verdict.reason}, peers, timeout_s)

    def close(self) -> None:
        """Stop answering; harmless when called twice."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that waits for a connection
        self._listener.close()

    def _ask(self, message: dict[str, Any], peers: Mapping[int, Endpoint], timeout_s: float) -> dict[int, Answer]:
        deadline = time.monotonic() + timeout_s
        line = _encode({"token": self._token, "sender": self._rank} | message)
        answers = dict.fromkeys(peers, Answer(None, is_gone=False))

        def ask(rank: int, peer: Endpoint) -> None:
            try:
                with socket.create_connection(peer, timeout=timeout_s) as connection:
                    connection.settimeout(max(deadline - time.monotonic(), 0.001))
                    connection.sendall(line)
                    answers[rank] = Answer(int(_decode(connection)["position"]), is_gone=False)
            except ConnectionError:
                answers[rank] = Answer(None, is_gone=True)
            except (OSError, ValueError, TypeError, KeyError) as error:
                _LOG.debug("rank %d does not answer: %s", rank, error)

        threads = [threading.Thread(target=ask, args=item, daemon=True) for item in peers.items()]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(max(deadline - time.monotonic(), 0.0))
        return dict(answers)

    def _answer_all(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return  # closed
            threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        try:
            with connection:
                connection.settimeout(_PATIENCE_S)
                message = _decode(connection)
                if hmac.compare_digest(str(message.get("token")), self._token):
                    self._take(message)
                    connection.sendall(_encode({"position": self.position}))
        except (OSError, ValueError, TypeError, KeyError) as error:
            _LOG.debug("a call that made no sense: %s", error)

    def _take(self, message: dict[str, Any]) -> None:
        self._heard.add(int(message["sender"]))
        if message["kind"] == "verdict" and self._verdict is None:
            self._verdict = Verdict(tuple(map(int, message["ranks"])), str(message["reason"]))


def _encode(message: dict[str, Any]) -> bytes:
    return json.dumps(message).encode() + b"\n"


def _decode(connection: socket.socket) -> dict[str, Any]:
    """The one line that the other end sends. Raises ValueError for anything but an object, ConnectionError for none."""
    with connection.makefile("rb") as stream:
        line = stream.readline(_MAX_LINE)
    if not line:
        raise ConnectionAbortedError("the other end closed without a word")
    message = json.loads(line)
    if not isinstance(message, dict):
        raise ValueError(f"a {type(message).__name__} came, an object was expected")
    return message
