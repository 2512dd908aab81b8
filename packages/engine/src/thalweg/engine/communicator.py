"""Agreement between the ranks of a group: tiny reductions on the host, with a name for whoever does not answer."""

from __future__ import annotations

import ctypes
import logging
import time
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, NoReturn, Self

import numpy as np
import torch
import torch.distributed
from numpy.typing import NDArray

from thalweg.engine.rendezvous import Store, meet
from thalweg.engine.roll_call import Answer, RollCall, Verdict
from thalweg.engine.sections import is_int
from thalweg.interfaces import ConfigError, InvariantError, PeerDiedError, ThalwegError, shown

_LOG = logging.getLogger(__name__)
_dist: Any = torch.distributed

DEFAULT_TIMEOUT_S = 60.0
MIN_TIMEOUT_S = 0.1
MAX_TIMEOUT_S = 86_400.0 * 30
_POLL = timedelta(seconds=0.1)
"""How often a rank that waits looks for a call from its peers. Reductions that take less never look."""
_MAX_GRACE_S = 2.0
MAX_VALUES = 30
MAX_RANKS = 1 << 16
_HEADER = 2


class GlooCommunicator:
    """interfaces.Communicator over a gloo process group of its own; no global state, no environment.

    Building one is a collective: all `size` ranks must do it within the timeout. store: a torch.distributed store that
    all ranks share and that served no other group under this `name`; it is not needed afterwards. host: the address at
    which the other ranks reach this one. timeout_s: the longest that a rank waits for the others in one reduction,
    finding out who is missing included; for that at most two seconds or a fifth of it are set aside.
    Used from one thread. Raises ConfigError for bad options, PeerDiedError naming the ranks that did not come.
    """

    def __init__(
        self,
        store: Store,
        rank: int,
        size: int,
        *,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        host: str = "127.0.0.1",
        name: str = "data",
    ) -> None:
        _check_rank(rank, size)
        self._timeout_s = _checked_timeout(timeout_s)
        self._grace_s = min(_MAX_GRACE_S, self._timeout_s / 5)
        self._rank, self._size, self._name = rank, size, name
        self._failure: ThalwegError | None = None
        self._roll_call = _listen(rank, host)
        try:
            members = meet(_dist.PrefixStore(f"thalweg/{name}", store), rank, size, self._roll_call.endpoint, timeout_s)
            self._roll_call.open(members.peers, members.token)
            self._group = self._connect(store, host)
        except BaseException:
            self._roll_call.close()
            raise

    @property
    def rank(self) -> int:
        return self._rank

    @property
    def size(self) -> int:
        return self._size

    @property
    def timeout_s(self) -> float:
        return self._timeout_s

    def all_reduce_min(self, values: NDArray[np.int32]) -> NDArray[np.int32]:
        """Element-wise minimum over the group. values: int32, at most 30, equally many on all ranks.

        Raises ValueError for another dtype or more values, InvariantError when the ranks do not make the same calls in
        the same order, PeerDiedError naming the ranks that did not answer within the timeout. After an error of the
        group every call raises it again.
        """
        return self._reduce(values, np.minimum)

    def all_reduce_max(self, values: NDArray[np.int32]) -> NDArray[np.int32]:
        """Element-wise maximum over the group; otherwise like `all_reduce_min`."""
        return self._reduce(values, np.maximum)

    def fail(self, reason: str) -> None:
        """Tell the others that this rank cannot go on: their next or present reduction raises PeerDiedError with it."""
        if self._failure is None:
            verdict = Verdict((self._rank,), f"rank {self._rank} cannot go on: {reason}")
            self._failure = PeerDiedError(f"{verdict.reason} (group {self._name!r})", verdict.ranks)
            self._roll_call.tell(verdict, self._roll_call.peers, self._grace_s)

    def close(self) -> None:
        """Leave the group; harmless when called twice. Whoever still reduces afterwards gets PeerDiedError."""
        if self._failure is None:
            self._failure = PeerDiedError(f"rank {self._rank} has closed its communicator of group {self._name!r}")
        self._roll_call.close()
        self._group = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _connect(self, store: Store, host: str) -> Any:
        if self._size == 1:
            return None
        options = _dist.ProcessGroupGloo._Options()
        options._timeout = timedelta(seconds=self._timeout_s)
        options._threads = 1
        options._devices = [_dist.ProcessGroupGloo.create_device(hostname=host, lazy_init=False)]
        mesh = _dist.PrefixStore(f"thalweg/{self._name}/gloo", store)
        try:
            return _dist.ProcessGroupGloo(mesh, self._rank, self._size, options)
        except RuntimeError as error:
            self._find_missing("connecting", error, timed_out=True)

    def _reduce(self, values: NDArray[np.int32], operation: np.ufunc) -> NDArray[np.int32]:
        _check_values(values)
        if self._failure is not None:
            raise self._failure
        if self._size == 1:
            return values.copy()
        if self._roll_call.verdict is not None:
            self._find_missing(f"before {operation.__name__}", None, timed_out=False)
        self._roll_call.position += 1
        label = (2 * self._roll_call.position + (operation is np.maximum)) % 2**31
        received = self._exchange(_message(label, values), operation.__name__)
        if (received[:, :_HEADER] != (label, values.size)).any():
            self._fail_to_agree(received)
        reduced: NDArray[np.int32] = operation.reduce(received[:, _HEADER : _HEADER + values.size])
        return reduced.reshape(values.shape)

    def _exchange(self, message: NDArray[np.int32], operation: str) -> NDArray[np.int32]:
        """The messages of all ranks, [size, 32]: everybody sends to everybody, one hop where a reduction has many."""
        deadline = time.monotonic() + self._timeout_s - self._grace_s
        received = np.empty((self._size, message.size), np.int32)
        sent = torch.from_numpy(np.tile(message, self._size))
        try:
            self._wait(
                self._group.alltoall_base(torch.from_numpy(received).view(-1), sent, [], []), operation, deadline
            )
        except RuntimeError as error:
            self._find_missing(operation, error, timed_out=time.monotonic() >= deadline)
        return received

    def _fail_to_agree(self, received: NDArray[np.int32]) -> NoReturn:
        """Raise what each rank was about."""
        calls = [
            f"rank {rank} number {label // 2}, the {'maximum' if label % 2 else 'minimum'} of {size}"
            for rank, (label, size) in enumerate(received[:, :_HEADER].tolist())
        ]
        self._failure = InvariantError(
            f"the ranks of group {self._name!r} make different reductions: {'; '.join(calls)}"
        )
        raise self._failure

    def _wait(self, work: Any, operation: str, deadline: float) -> None:
        """Until the reduction has ended, time is up, or a peer calls. Raises RuntimeError if it failed."""
        try:
            while not _is_done(work):
                if self._roll_call.heard or time.monotonic() >= deadline:
                    self._find_missing(operation, None, timed_out=True)
        except BaseException:
            if not work.is_completed():
                _keep_for_ever(self._group)
            raise

    def _find_missing(self, operation: str, cause: Exception | None, *, timed_out: bool) -> NoReturn:
        """Call the roll, pass the result on, and raise it."""
        number = self._roll_call.position
        _LOG.error("rank %d: group %r, reduction %d (%s) failed: %s", self._rank, self._name, number, operation, cause)
        verdict = self._roll_call.verdict
        if verdict is None:
            answers = self._roll_call.call(0.7 * self._grace_s)
            verdict = self._roll_call.verdict or self._judge(answers, number, timed_out)
            present = [rank for rank, answer in answers.items() if answer.position is not None]
            self._roll_call.tell(verdict, present, 0.2 * self._grace_s)
        if self._rank in verdict.ranks:
            text = f"the other ranks gave up on rank {self._rank}, this one: {verdict.reason}"
        else:
            text = verdict.reason
        self._failure = PeerDiedError(f"{text} (group {self._name!r}, reduction {number})", verdict.ranks)
        raise self._failure from cause

    def _judge(self, answers: Mapping[int, Answer], number: int, timed_out: bool) -> Verdict:
        """Who is missing: those that do not answer; if all do and time is up, those that have not come this far."""
        absent = {r: answer for r, answer in answers.items() if answer.position is None}
        absent = {r: answer for r, answer in absent.items() if r not in self._roll_call.heard}
        if absent:
            gone = [r for r, answer in absent.items() if answer.is_gone]
            silent = [r for r, answer in absent.items() if not answer.is_gone]
            parts = [f"{_names(gone)} died or left"] if gone else []
            parts += [f"{_names(silent)} did not answer within {self._timeout_s:g} s"] if silent else []
            return Verdict(tuple(absent), " and ".join(parts))
        late = [r for r, answer in answers.items() if answer.position is not None and answer.position < number]
        if late and timed_out:
            return Verdict(tuple(late), f"{_names(late)} did not come within {self._timeout_s:g} s, although alive")
        return Verdict((), "a reduction failed although every rank answers")


def _is_done(work: Any) -> bool:
    """Wait a little. Raises RuntimeError if the reduction failed."""
    try:
        work.wait(_POLL)
        return True
    except RuntimeError:
        if not work.is_completed():
            return False
    work.wait(_POLL)  # it ended just now, or it failed and raises its own error here
    return True


def _keep_for_ever(group: Any) -> None:
    """Let a group with an unfinished reduction live as long as its process, which is to end now.

    Only its own timeout ends such a reduction, and taking the group apart would wait for that.
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(group))


def _check_values(values: Any) -> None:
    if not isinstance(values, np.ndarray) or values.dtype != np.int32:
        found = values.dtype if isinstance(values, np.ndarray) else type(values).__name__
        raise ValueError(f"values is {found}; it must be an int32 array")
    if values.size > MAX_VALUES:
        raise ValueError(f"values has {values.size} elements; at most {MAX_VALUES} are reduced at once")


def _message(label: int, values: NDArray[np.int32]) -> NDArray[np.int32]:
    """[32] what a rank says: which reduction it is in, how many values there are, the values."""
    message = np.zeros(_HEADER + MAX_VALUES, np.int32)
    message[:_HEADER] = label, values.size
    message[_HEADER : _HEADER + values.size] = values.reshape(-1)
    return message


def _names(ranks: list[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else "ranks " + ", ".join(map(str, ranks))


def _listen(rank: int, host: Any) -> RollCall:
    try:
        return RollCall(rank, host)
    except (OSError, TypeError, ValueError) as error:
        raise ConfigError(f"host is {shown(host)}; it must be an address of this machine ({error})") from error


def _check_rank(rank: Any, size: Any) -> None:
    if not is_int(size) or not 1 <= size <= MAX_RANKS:
        raise ConfigError(f"size is {shown(size)}; it must be an integer from 1 to {MAX_RANKS}")
    if not is_int(rank) or not 0 <= rank < size:
        raise ConfigError(f"rank is {shown(rank)}; it must be an integer from 0 to {size - 1}")


def _checked_timeout(timeout_s: Any) -> float:
    is_number = isinstance(timeout_s, int | float) and not isinstance(timeout_s, bool)
    if not is_number or not MIN_TIMEOUT_S <= timeout_s <= MAX_TIMEOUT_S:
        accepted = f"a number of seconds from {MIN_TIMEOUT_S} to {MAX_TIMEOUT_S:.0f}"
        raise ConfigError(f"timeout_s is {shown(timeout_s)}; it must be {accepted}")
    return float(timeout_s)
