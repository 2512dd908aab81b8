"""How the ranks of a group find each other: each writes down where it listens and waits for the others to do so."""

from __future__ import annotations

import json
import secrets
import time
from dataclasses import dataclass
from typing import Any, Protocol

from thalweg.engine.roll_call import Endpoint
from thalweg.interfaces import ConfigError, PeerDiedError

_POLL_S = 0.02


class Store(Protocol):
    """What is needed of a torch.distributed store."""

    def add(self, key: str, amount: int, /) -> int: ...

    def set(self, key: str, value: str, /) -> None: ...

    def get(self, key: str, /) -> bytes: ...

    def check(self, keys: list[str], /) -> bool: ...


@dataclass(frozen=True, slots=True)
class Members:
    """The ranks of a group."""

    peers: dict[int, Endpoint]
    """The other ranks."""
    token: str
    """A secret of the group."""


def meet(store: Store, rank: int, size: int, endpoint: Endpoint, timeout_s: float) -> Members:
    """Wait until all ranks are there.

    store: of this group alone. Raises PeerDiedError naming the ranks that do not come in time, ConfigError when two
    ranks have the same number or disagree about the size.
    """
    try:
        return _meet(store, rank, size, endpoint, time.monotonic() + timeout_s, timeout_s)
    except RuntimeError as error:  # what a store raises when its host is gone
        raise PeerDiedError(f"rank {rank} cannot reach the store through which the ranks meet: {error}") from error


def _meet(store: Store, rank: int, size: int, endpoint: Endpoint, deadline: float, timeout_s: float) -> Members:
    if store.add(f"claim {rank}", 1) > 1:
        raise ConfigError(
            f"rank {rank} has come through this store before; every rank has a number of its own, and every group a "
            "new store or another name"
        )
    if rank == 0:
        store.set("token", secrets.token_hex(16))
    store.set(f"rank {rank}", json.dumps({"endpoint": endpoint, "size": size}))
    waiting = ["token", *(f"rank {other}" for other in range(size))]
    while waiting := [key for key in waiting if not store.check([key])]:
        if time.monotonic() >= deadline:
            missing = tuple(other for other in range(size) if f"rank {other}" in waiting)
            names = ", ".join(map(str, missing))
            raise PeerDiedError(f"of {size} ranks these did not come within {timeout_s:g} s: {names}", missing)
        time.sleep(_POLL_S)
    members: dict[int, Any] = {other: json.loads(store.get(f"rank {other}")) for other in range(size)}
    for other, member in members.items():
        if member["size"] != size:
            raise ConfigError(f"rank {rank} has size {size}, but rank {other} has size {member['size']}")
    peers = {other: Endpoint(*member["endpoint"]) for other, member in members.items() if other != rank}
    return Members(peers, store.get("token").decode())
