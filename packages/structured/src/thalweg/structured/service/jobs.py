"""What the compile service works on: one job per grammar, with everybody who waits for it."""

from __future__ import annotations

import enum
from collections import Counter
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field, replace

from thalweg.interfaces import GrammarSpec, Matcher, RequestError


class JobState(enum.Enum):
    """Where a job is."""

    QUEUED = "queued"
    RUNNING = "running"
    FINISHING = "finishing"
    """A worker has compiled it; the grammar is being made here."""


@dataclass(eq=False, slots=True)
class Job:
    """One grammar that is being compiled."""

    spec: GrammarSpec
    """Without trigger and bound, which are the matchers' business."""
    state: JobState = JobState.QUEUED
    waiters: dict[Waiter, None] = field(default_factory=dict)
    """In the order in which they came."""
    users: Counter[str] = field(default_factory=Counter)
    """How many of the waiters are each user's."""
    num_starts: int = 0
    started_at: float = 0.0
    """When its worker got it, on the monotonic clock."""


@dataclass(eq=False, slots=True)
class Waiter:
    """One request for a grammar."""

    future: Future[Matcher]
    spec: GrammarSpec
    user: str
    job: Job
    submitted_at: float
    deadline: float | None
    """Both on the monotonic clock; None until the service is ready."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """A decided request: `waiter` gets the grammar, or the error if there is none."""

    waiter: Waiter
    error: str = ""


def resolve(future: Future[Matcher], result: Matcher | RequestError) -> None:
    """Give a future its result, unless it is cancelled in this moment."""
    with suppress(InvalidStateError):
        if isinstance(result, RequestError):
            future.set_exception(result)
        else:
            future.set_result(result)


def key_of(spec: GrammarSpec) -> GrammarSpec:
    """What makes two specifications the same grammar."""
    if not spec.trigger_token_ids and spec.bound_token_id is None:
        return spec
    return replace(spec, trigger_token_ids=(), bound_token_id=None)
