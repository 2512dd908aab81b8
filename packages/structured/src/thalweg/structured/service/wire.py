"""Messages between the compile service and its processes: a small mapping and bytes, over stream sockets."""

from __future__ import annotations

import contextlib
import json
import socket
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

COMMAND = struct.Struct("!cI")
"""What the zygote is told, of fixed size because descriptors may come with it: a letter, and the number of a worker."""
FORK, KILL = b"F", b"K"

_LENGTHS = struct.Struct("!IQ")
_READ_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Message:
    """What one side told the other."""

    head: Mapping[str, Any]
    body: bytes = b""


def encode(message: Message) -> bytes:
    """The bytes of a message: both lengths, the head as JSON, the body."""
    head = json.dumps(message.head).encode()
    return _LENGTHS.pack(len(head), len(message.body)) + head + message.body


def send(sock: socket.socket, message: Message) -> None:
    """Send a message over a blocking socket. Raises OSError if the other side is gone."""
    sock.sendall(encode(message))


def receive(sock: socket.socket) -> Message | None:
    """The next message of a blocking socket; None once the other side is gone."""
    lengths = _receive_exactly(sock, _LENGTHS.size)
    if lengths is None:
        return None
    head_bytes, body_bytes = _LENGTHS.unpack(lengths)
    head = _receive_exactly(sock, head_bytes)
    body = None if head is None else _receive_exactly(sock, body_bytes)
    return None if head is None or body is None else Message(json.loads(head), body)


def _receive_exactly(sock: socket.socket, num_bytes: int) -> bytes | None:
    data = bytearray()
    while len(data) < num_bytes:
        try:
            part = sock.recv(min(num_bytes - len(data), _READ_BYTES))
        except ConnectionError:
            return None
        if not part:
            return None
        data += part
    return bytes(data)


class Channel:
    """One end of a connection for a thread that must not wait: what cannot be sent or is half received stays here."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._socket = sock
        self._received = bytearray()
        self._unsent = memoryview(b"")

    def fileno(self) -> int:
        return self._socket.fileno()

    @property
    def has_unsent(self) -> bool:
        """Whether `flush` has to be called when the socket can be written to."""
        return len(self._unsent) > 0

    def post(self, message: Message) -> None:
        """Send a message, as much of it as is possible now. Raises ConnectionError if the other side is gone."""
        self._unsent = memoryview(bytes(self._unsent) + encode(message))
        self.flush()

    def flush(self) -> None:
        """Send more of what waits. Raises ConnectionError if the other side is gone."""
        while self._unsent:
            try:
                self._unsent = self._unsent[self._socket.send(self._unsent) :]
            except BlockingIOError:
                return

    def read(self) -> list[Message]:
        """The messages that are complete now, after reading once.

        Raises ConnectionError if the other side is gone and all of its messages were returned.
        """
        try:
            part = self._socket.recv(_READ_BYTES)
        except BlockingIOError:
            return []
        if not part:
            raise ConnectionResetError("the other side closed the connection")
        self._received += part
        return list(iter(self._take, None))

    def read_rest(self) -> list[Message]:
        """The messages that are complete after reading everything that has arrived; for when the other side is gone."""
        with contextlib.suppress(OSError):  # nothing more, or the end
            while part := self._socket.recv(_READ_BYTES):
                self._received += part
        return list(iter(self._take, None))

    def _take(self) -> Message | None:
        if len(self._received) < _LENGTHS.size:
            return None
        head_bytes, body_bytes = _LENGTHS.unpack_from(self._received)
        body_from = _LENGTHS.size + head_bytes
        if len(self._received) < body_from + body_bytes:
            return None
        head = json.loads(self._received[_LENGTHS.size : body_from])
        body = bytes(memoryview(self._received)[body_from : body_from + body_bytes])
        del self._received[: body_from + body_bytes]
        return Message(head, body)

    def close(self) -> None:
        self._socket.close()
