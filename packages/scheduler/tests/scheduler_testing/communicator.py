"""Fake groups: ranks that are threads of one process, and a rank whose peers are made up."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.int32]


class Group:
    """Ranks in one process; every rank must make the same collectives in the same order.

    A rank that makes another one, or stops while the others wait, fails the run at once and by name: no timeouts.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.log: list[list[tuple[str, Array]]] = [[] for _ in range(size)]
        """Per rank: the collectives of the latest `run`, and what the rank gave."""
        self._changed = threading.Condition()
        self._given: dict[int, tuple[str, Array]] = {}
        self._finished: set[int] = set()
        self._round = 0
        self._result: Array = np.zeros(0, np.int32)
        self._failure: str | None = None
        self._threads = ThreadPoolExecutor(size - 1) if size > 1 else None

    def member(self, rank: int) -> Member:
        return Member(self, rank)

    def run(self, calls: Sequence[Callable[[], Any]]) -> list[Any]:
        """Run one call per rank side by side and return their results in rank order."""
        self.log = [[] for _ in calls]
        self._finished.clear()
        self._given.clear()
        tasks = [lambda rank=rank, call=call: self._as_rank(rank, call) for rank, call in enumerate(calls)]
        futures = [self._threads.submit(task) for task in tasks[1:]] if self._threads else []
        own = _outcome(tasks[0])
        outcomes = [own, *(_outcome(future.result) for future in futures)]
        errors = [error for _, error in outcomes if error is not None]
        # A rank that fails makes its peers fail too; its own error says why.
        for error in sorted(errors, key=lambda error: isinstance(error, GroupError)):
            raise error
        return [result for result, _ in outcomes]

    def close(self) -> None:
        if self._threads:
            self._threads.shutdown()

    def meet(self, rank: int, operation: str, values: Array) -> Array:
        assert values.dtype == np.int32, f"rank {rank} reduces {values.dtype}"
        self.log[rank].append((operation, values.copy()))
        with self._changed:
            self._given[rank] = (operation, values)
            meeting = self._round
            self._complete()
            self._changed.wait_for(lambda: self._round != meeting or self._failure)
            if self._failure:
                raise GroupError(self._failure)
            return self._result.copy()

    def _as_rank(self, rank: int, call: Callable[[], Any]) -> Any:
        try:
            return call()
        finally:
            with self._changed:
                self._finished.add(rank)
                self._complete()

    def _complete(self) -> None:
        """Reduce once everybody came, or notice that somebody never will."""
        if not self._given or len(self._given) + len(self._finished) < self.size:
            return
        kinds = {(operation, values.shape) for operation, values in self._given.values()}
        if self._finished or len(kinds) != 1:
            given = {rank: (operation, values.tolist()) for rank, (operation, values) in self._given.items()}
            self._failure = f"ranks went different ways: {given}, finished {sorted(self._finished)}"
        else:
            reduce = np.minimum.reduce if kinds.pop()[0] == "min" else np.maximum.reduce
            self._result = reduce([values for _, values in self._given.values()])
            self._given.clear()
            self._round += 1
        self._changed.notify_all()


class GroupError(AssertionError):
    """The ranks of a group made different collectives."""


class Member:
    """One rank of a group; satisfies `thalweg.interfaces.Communicator`."""

    def __init__(self, group: Group, rank: int) -> None:
        self._group = group
        self.rank = rank
        self.size = group.size

    def all_reduce_min(self, values: Array) -> Array:
        return self._group.meet(self.rank, "min", values)

    def all_reduce_max(self, values: Array) -> Array:
        return self._group.meet(self.rank, "max", values)


class MadeUpPeers:
    """One rank whose peers say whatever they like: busy or not, for a prefill or against it."""

    def __init__(self, rng: random.Random, chance: float) -> None:
        """chance: how often the peers differ from this rank."""
        self._random = rng
        self._chance = chance
        self.rank = 0
        self.size = 2

    def all_reduce_min(self, values: Array) -> Array:
        """0 is a "no" among all and a "yes" among some."""
        return np.minimum(values, self._flags(values, 1))

    def all_reduce_max(self, values: Array) -> Array:
        return np.maximum(values, self._flags(values, 0))

    def _flags(self, values: Array, neutral: int) -> Array:
        flags = [1 - neutral if self._random.random() < self._chance else neutral for _ in range(values.size)]
        return np.array(flags, np.int32).reshape(values.shape)


def _outcome(call: Callable[[], Any]) -> tuple[Any, Exception | None]:
    try:
        return call(), None
    except Exception as error:
        return None, error
