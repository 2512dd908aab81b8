"""What happens to the processes of a service."""

from __future__ import annotations

from dataclasses import dataclass

from thalweg.structured.service.jobs import Job
from thalweg.structured.service.wire import Message


@dataclass(frozen=True, slots=True)
class Done:
    """A worker is finished with its job."""

    job: Job
    message: Message


@dataclass(frozen=True, slots=True)
class Lost:
    """A worker ended in the middle of its job without being asked to."""

    job: Job
    reason: str
    is_cpu_limit: bool


@dataclass(frozen=True, slots=True)
class Collapsed:
    """The zygote is gone, and all workers with it."""

    jobs: list[Job]
    """What they were doing."""
    reason: str


Event = Done | Lost | Collapsed
