"""Everything that watches an engine: statistics, metrics, the profile server."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

from thalweg.engine.profiling import ProfileServer
from thalweg.engine.statistics import Capacity, StepStatistics
from thalweg.engine.statistics_config import StatisticsConfig

if TYPE_CHECKING:
    from thalweg.engine.statistics.prometheus import EngineMetrics


@dataclass(frozen=True, slots=True)
class Instruments:
    """What an engine carries along; on their own, statistics without usage and nothing else."""

    statistics: StepStatistics = field(default_factory=StepStatistics)
    metrics: EngineMetrics | None = None
    profile_server: ProfileServer | None = None

    @classmethod
    def build(
        cls, options: StatisticsConfig, capacity: Capacity, *, model_name: str, device: str = "cpu", rank: int = 0
    ) -> Self:
        """Make what the options ask for.

        device: its kind, "cpu" or "gpu". rank: of this engine in its group, and number of its device.
        Raises ConfigError for metrics without the extra. A port that is in use only costs the profile server.
        """
        statistics = StepStatistics(
            capacity, interval_steps=options.logging_interval_steps if options.log_stats else 0, rank=rank
        )
        metrics = None
        if options.metrics:
            from thalweg.engine.statistics.prometheus import EngineMetrics

            metrics = EngineMetrics(capacity, model_name=model_name, rank=rank)
            metrics.follow(statistics)
        server, port = None, options.profile_port
        if port is not None:
            server = ProfileServer.start(
                port + rank if port else 0, output_dir=options.profile_dir, device=f"{device}{rank}", rank=rank
            )
        return cls(statistics, metrics, server)

    def before_step(self) -> None:
        """Called by the engine's thread at the start of each step; never raises."""
        if self.profile_server is not None:
            self.profile_server.tick()

    def close(self) -> None:
        """End their threads. On the engine's thread."""
        if self.profile_server is not None:
            self.profile_server.close()
        self.statistics.close()
