"""A torch profile, from its start to its trace file."""

from __future__ import annotations

import os
from typing import Any, Protocol


class ProfileSession(Protocol):
    """Records what runs between `start` and `stop`, both called on the engine's thread."""

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def export(self, path: str) -> None:
        """Write a Chrome trace; on any thread, after `stop`."""


class TorchSession:
    """Whatever torch.profiler can see of host and device, on every thread of the process."""

    def __init__(self) -> None:
        from torch._C._profiler import _ExperimentalConfig
        from torch.profiler import profile

        # Without it only the thread that started the profile is recorded, and the CPU backend computes on another.
        config = _ExperimentalConfig(profile_all_threads=True)
        self._profile: Any = profile(experimental_config=config)

    def start(self) -> None:
        self._profile.start()

    def stop(self) -> None:
        self._profile.stop()

    def export(self, path: str) -> None:
        """Write the trace under another name first, so that a file with the right name is complete."""
        partial = path.removesuffix(".json") + ".partial.json"
        self._profile.export_chrome_trace(partial)
        os.replace(partial, path)
