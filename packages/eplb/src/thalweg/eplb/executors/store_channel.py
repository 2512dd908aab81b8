"""Agreement between ranks over a torch store: slow, needs nothing else, and knows who is missing."""

from __future__ import annotations

import time
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from thalweg.interfaces import ConfigError, PeerDiedError, ThalwegError, shown

_FIRST_PAUSE_S, _LAST_PAUSE_S = 0.0002, 0.01


class StoreChannel:
    """interfaces.Communicator and thalweg.eplb.Channel over a store that all ranks share; used from one thread.

    An exchange takes milliseconds: meant for rearrangements. An engine with a faster communicator passes its own.
    store: of torch.distributed. name: no other channel of the store has it. timeout_s: the longest that a rank waits
    for the others; it must exceed the time by which ranks come to the same exchange.
    """

    def __init__(self, store: Any, rank: int, size: int, *, timeout_s: float, name: str) -> None:
        if size < 1 or not 0 <= rank < size:
            raise ConfigError(f"rank is {shown(rank)} of size {shown(size)}; it must be in 0..size - 1")
        if not 0 < timeout_s < float("inf"):
            raise ConfigError(f"timeout_s is {shown(timeout_s)}; it must be a number of seconds above 0")
        self._store, self._rank, self._size = store, rank, size
        self._timeout_s, self._name = timeout_s, name
        self._number = 0
        self._failure: ThalwegError | None = None

    @property
    def rank(self) -> int:
        return self._rank

    @property
    def size(self) -> int:
        return self._size

    def exchange(self, data: bytes) -> list[bytes]:
        """What every rank said, by rank. Raises PeerDiedError naming the ranks that did not come within the timeout.

        After an error every call raises it again.
        """
        if self._failure is not None:
            raise self._failure
        self._number += 1
        keys = [self._key(self._number, rank) for rank in range(self._size)]
        try:
            self._store.set(keys[self._rank], data)
            self._wait_for(keys)
            answers = [bytes(self._store.get(key)) for key in keys]
            # Whoever is here has seen every rank come here, so all have read what was said before.
            self._store.delete_key(self._key(self._number - 1, self._rank))
        except RuntimeError as error:
            self._fail(f"the store cannot be reached, whose host may be gone: {error}", (), error)
        return answers

    def all_reduce_min(self, values: NDArray[np.int32]) -> NDArray[np.int32]:
        """Element-wise minimum over the ranks. values: int32, of one shape on all ranks."""
        smallest: NDArray[np.int32] = np.minimum.reduce(self._exchange_values(values))
        return smallest

    def all_reduce_max(self, values: NDArray[np.int32]) -> NDArray[np.int32]:
        """Element-wise maximum over the ranks; otherwise like `all_reduce_min`."""
        largest: NDArray[np.int32] = np.maximum.reduce(self._exchange_values(values))
        return largest

    def fail(self, reason: str) -> None:
        """Tell the others that this rank cannot go on: their next or present exchange raises PeerDiedError with it."""
        if self._failure is None:
            text = f"rank {self._rank} cannot go on: {reason}"
            self._failure = PeerDiedError(text, (self._rank,))
            self._store.set(f"{self._name}/failed", f"{self._rank} {text}".encode())

    def _exchange_values(self, values: NDArray[np.int32]) -> list[NDArray[np.int32]]:
        return [
            np.frombuffer(answer, np.int32).reshape(values.shape)
            for answer in self.exchange(values.astype(np.int32).tobytes())
        ]

    def _key(self, number: int, rank: int) -> str:
        return f"{self._name}/{number}/{rank}"

    def _wait_for(self, keys: list[str]) -> None:
        deadline = time.monotonic() + self._timeout_s
        pause_s = _FIRST_PAUSE_S
        while not self._store.check(keys):
            if self._store.check([f"{self._name}/failed"]):
                rank, text = bytes(self._store.get(f"{self._name}/failed")).decode().split(" ", 1)
                self._fail(text, (int(rank),))
            if time.monotonic() > deadline:
                missing = [rank for rank, key in enumerate(keys) if not self._store.check([key])]
                if missing:
                    names = ", ".join(f"rank {rank}" for rank in missing)
                    self._fail(f"{names} did not answer within {self._timeout_s:g} s", tuple(missing))
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _LAST_PAUSE_S)

    def _fail(self, text: str, ranks: tuple[int, ...], cause: Exception | None = None) -> NoReturn:
        self._failure = PeerDiedError(f"{text} (channel {self._name!r}, exchange {self._number})", ranks)
        raise self._failure from cause
