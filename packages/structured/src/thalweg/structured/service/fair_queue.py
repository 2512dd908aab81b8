"""Who is next: jobs of several users, one of each in turn."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Hashable
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)


class FairQueue(Generic[T]):
    """Round robin over the users that wait for something; within a user the order of arrival.

    A job may be waited for by several users and is reached in the turn of any of them, then gone for all.
    """

    def __init__(self) -> None:
        self._jobs_of: OrderedDict[str, OrderedDict[T, None]] = OrderedDict()
        self._users_of: dict[T, set[str]] = {}

    def __len__(self) -> int:
        return len(self._users_of)

    def __contains__(self, job: T) -> bool:
        return job in self._users_of

    def num_waiting(self, user: str) -> int:
        """Jobs that this user waits for."""
        return len(self._jobs_of.get(user, ()))

    def users_of(self, job: T) -> frozenset[str]:
        """Who waits for a job."""
        return frozenset(self._users_of.get(job, ()))

    def push(self, job: T, user: str, *, first: bool = False) -> None:
        """Let a user wait for a job; does nothing if they already do.

        first: it was begun once, and goes before the user's others.
        """
        self._users_of.setdefault(job, set()).add(user)
        jobs = self._jobs_of.setdefault(user, OrderedDict())
        jobs.setdefault(job)
        if first:
            jobs.move_to_end(job, last=False)

    def has_waiting_besides(self, users: Collection[str]) -> bool:
        """Whether somebody else waits."""
        return any(user not in users for user in self._jobs_of)

    def pop(self, served: Collection[str] = ()) -> T | None:
        """Take the next job, and give its user's turn to the one after; None if nothing waits.

        served: users who have something already; it is their turn if nobody else waits.
        """
        if not self._jobs_of:
            return None
        user = next((user for user in self._jobs_of if user not in served), next(iter(self._jobs_of)))
        job = next(iter(self._jobs_of[user]))
        self._jobs_of.move_to_end(user)
        for waiting in self.users_of(job):
            self.leave(job, waiting)
        return job

    def leave(self, job: T, user: str) -> None:
        """This user does not wait for the job any more; without users it is gone."""
        users = self._users_of.get(job)
        if users is None or user not in users:
            return
        users.remove(user)
        if not users:
            del self._users_of[job]
        del self._jobs_of[user][job]
        if not self._jobs_of[user]:
            del self._jobs_of[user]
