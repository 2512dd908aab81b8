"""What a measured step-time curve is valid for, as one digest."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any

from thalweg.dspark._checks import require_integer
from thalweg.interfaces import ConfigError, shown


@dataclass(frozen=True, slots=True)
class CurveKey:
    """Everything that the time of a step depends on. Raises ConfigError for sizes that are no curve's."""

    model: str
    """Name or path of the checkpoint."""
    sizes: tuple[int, ...]
    """Graph sizes in query tokens, strictly ascending."""
    device_name: str
    package_version: str
    toolchain: str
    """Whatever else changes the time: versions of libraries and drivers, arithmetic, number of threads."""
    data_parallel_size: int = 1
    context_parallel_size: int = 1
    expert_parallel_size: int = 1

    def __post_init__(self) -> None:
        for name in ("model", "device_name", "package_version", "toolchain"):
            value = getattr(self, name)
            if not isinstance(value, str):
                raise ConfigError(f"{name} is {shown(value)}; text is needed")
        for name in ("data_parallel_size", "context_parallel_size", "expert_parallel_size"):
            require_integer(name, getattr(self, name), 1)
        if not isinstance(self.sizes, tuple) or not self.sizes:
            raise ConfigError(f"sizes is {shown(self.sizes)}; a tuple of at least one graph size is needed")
        for i, size in enumerate(self.sizes):
            require_integer(f"sizes[{i}]", size, 1)
            if i and size <= self.sizes[i - 1]:
                raise ConfigError(f"sizes[{i}] is {size} after {self.sizes[i - 1]}; sizes must ascend strictly")

    @property
    def payload(self) -> dict[str, Any]:
        """What the digest is of."""
        return {
            "time_unit": "ms",
            "model": self.model,
            "batch_sizes": list(self.sizes),
            "parallel_config": {
                "data_parallel_size": self.data_parallel_size,
                "context_parallel_size": self.context_parallel_size,
                "expert_parallel_size": self.expert_parallel_size,
            },
            "device_name": self.device_name,
            "package_version": self.package_version,
            "toolchain": self.toolchain,
        }

    @property
    def digest(self) -> str:
        """64 hexadecimal digits."""
        return digest_of(self.payload)


def digest_of(value: Any) -> str:
    """SHA-256 of a JSON value's canonical text, 64 hexadecimal digits."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()


def canonical_json(value: Any) -> str:
    """JSON with sorted keys, no spaces and ASCII only: equal values give equal text."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))
