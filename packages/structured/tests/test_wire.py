import socket
import threading
from collections.abc import Iterator

import pytest

from thalweg.structured.service.wire import Channel, Message, receive, send

SocketPair = tuple[socket.socket, socket.socket]


@pytest.fixture
def pair() -> Iterator[SocketPair]:
    ours, theirs = socket.socketpair()
    yield ours, theirs
    ours.close()
    theirs.close()


def test_messages_arrive_as_they_were_sent(pair: SocketPair) -> None:
    messages = [Message({"a": 1, "text": "ä\ud800"}), Message({}, b"\x00\xff"), Message({"b": None}, b"x" * 1000)]
    for message in messages:
        send(pair[0], message)
    assert [receive(pair[1]) for _ in messages] == messages


def test_the_end_of_the_connection_is_none_even_inside_a_message(pair: SocketPair) -> None:
    pair[0].sendall(b"\x00\x00\x00")
    pair[0].close()
    assert receive(pair[1]) is None
    assert receive(pair[1]) is None


def test_a_channel_puts_messages_together_from_any_pieces(pair: SocketPair) -> None:
    channel = Channel(pair[1])
    assert channel.read() == []
    sent = [Message({"n": n}, b"y" * n) for n in range(3)]
    other, copy = socket.socketpair()
    for message in sent:
        send(other, message)
    data = copy.recv(10_000)
    received = []
    for byte in data:
        pair[0].send(bytes([byte]))
        received += channel.read()
    assert received == sent
    pair[0].close()
    with pytest.raises(ConnectionError):
        channel.read()
    other.close()
    copy.close()


def test_messages_that_arrive_together_are_read_together(pair: SocketPair) -> None:
    channel = Channel(pair[1])
    sent = [Message({"n": n}) for n in range(3)]
    for message in sent:
        send(pair[0], message)
    assert channel.read() == sent


def test_what_somebody_said_before_the_end_is_read_after_it(pair: SocketPair) -> None:
    channel = Channel(pair[1])
    sent = [Message({"n": n}, b"z" * 10_000) for n in range(3)]
    for message in sent:
        send(pair[0], message)
    pair[0].sendall(b"half a message")
    assert channel.read_rest() == sent
    pair[0].close()
    assert channel.read_rest() == []


def test_a_channel_keeps_what_cannot_be_sent_yet_and_never_waits(pair: SocketPair) -> None:
    channel = Channel(pair[0])
    messages = [Message({"n": n}, bytes([n]) * 3_000_000) for n in range(2)]
    for message in messages:
        channel.post(message)
    assert channel.has_unsent
    received: list[Message | None] = []
    reader = threading.Thread(target=lambda: received.extend(receive(pair[1]) for _ in messages))
    reader.start()
    while channel.has_unsent:
        channel.flush()
    reader.join()
    assert received == messages


def test_a_channel_says_that_the_other_side_is_gone(pair: SocketPair) -> None:
    channel = Channel(pair[0])
    pair[1].close()
    with pytest.raises(ConnectionError):
        channel.post(Message({"n": 1}))
