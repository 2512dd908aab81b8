"""Many different schemas, one after another, and what they leave behind."""

from __future__ import annotations

import os
import random
from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from service_testing.services import workers_of
from service_testing.system import resident_bytes

from thalweg.interfaces import GrammarSpec, Matcher
from thalweg.structured import CompileService

MIB = 1 << 20
_TYPES = ("string", "integer", "number", "boolean", "null")


@dataclass(frozen=True)
class Sample:
    """The state of a service after so many schemas."""

    num_schemas: int
    cache_bytes: int
    parent_bytes: int
    """Resident, of this process."""
    worker_bytes: int
    """Resident, of the largest worker, pages that it shares with others included."""


def random_schema(rng: random.Random, number: int) -> GrammarSpec:
    """An object of up to two levels that no other number has."""

    def value(depth: int) -> dict[str, Any]:
        kind = rng.choice(_TYPES + ("object", "array", "enum") * (depth < 2))
        if kind == "object":
            names = rng.sample([f"field_{i}" for i in range(20)], rng.randint(1, 6))
            return {"type": "object", "properties": {name: value(depth + 1) for name in names}, "required": names[:2]}
        if kind == "array":
            return {"type": "array", "items": value(depth + 1), "maxItems": rng.randint(1, 8)}
        if kind == "enum":
            return {"enum": [f"choice {rng.randint(0, 999)}" for _ in range(rng.randint(1, 9))]}
        return {"type": kind}

    properties = {f"n{number}": {"const": number}, "a": value(0), "b": value(0)}
    return GrammarSpec.json({"type": "object", "properties": properties, "required": [f"n{number}"]})


def churn(service: CompileService, num_schemas: int, num_samples: int, seed: int, at_once: int = 4) -> list[Sample]:
    """Compile that many schemas, and look at the memory every so often."""
    rng = random.Random(seed)
    pending: deque[Future[Matcher]] = deque()
    samples = []
    for number in range(1, num_schemas + 1):
        pending.append(service.compile(random_schema(rng, number)))
        if len(pending) == at_once:
            pending.popleft().result(60)
        if number % (num_schemas // num_samples) == 0:
            while pending:
                pending.popleft().result(60)
            workers = max(map(resident_bytes, workers_of(service)))
            samples.append(Sample(number, service.counts.cache_bytes, resident_bytes(os.getpid()), workers))
    return samples


def describe(samples: list[Sample]) -> str:
    """A line for each sample, in MiB."""
    return "\n".join(
        f"{one.num_schemas:6} schemas: cache {one.cache_bytes / MIB:.1f}, parent {one.parent_bytes / MIB:.0f}, "
        f"largest worker {one.worker_bytes / MIB:.0f} MiB"
        for one in samples
    )
