"""Everything that watches an engine: statistics, metrics, the profile server."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

import numpy as np

from thalweg.dspark import ConfidenceRecorder
from thalweg.engine.profiling import ProfileServer
from thalweg.engine.statistics import Capacity, StepRecord, StepStatistics
from thalweg.engine.statistics_config import StatisticsConfig
from thalweg.interfaces import StepKind

if TYPE_CHECKING:
    from thalweg.engine.statistics.prometheus import EngineMetrics


@dataclass(slots=True)
class Instruments:
    """What an engine carries along; on their own, statistics without usage and nothing else."""

    statistics: StepStatistics = field(default_factory=StepStatistics)
    metrics: EngineMetrics | None = None
    """Its `registry` is what Prometheus scrapes."""
    options: StatisticsConfig = field(default_factory=StatisticsConfig)
    rank: int = 0
    profile_server: ProfileServer | None = None
    confidence_recorder: ConfidenceRecorder | None = None

    @classmethod
    def build(cls, options: StatisticsConfig, capacity: Capacity, *, model_name: str, rank: int = 0) -> Self:
        """What the options ask for, without the profile server.

        rank: of this engine in its group. Raises ConfigError for metrics without the extra.
        """
        interval = options.logging_interval_steps if options.log_stats else 0
        instruments = cls(StepStatistics(capacity, interval_steps=interval, rank=rank), options=options, rank=rank)
        if options.metrics:
            from thalweg.engine.statistics.prometheus import EngineMetrics

            instruments.metrics = EngineMetrics(capacity, model_name=model_name, rank=rank)
            instruments.metrics.follow(instruments.statistics)
        return instruments

    def record_confidences(self, path: str, draft_length: int) -> None:
        """Append what the drafter said of verified drafts, and what became of them, to a file from now on.

        Raises ConfigError for a file that cannot be used.
        """
        recorder = self.confidence_recorder = ConfidenceRecorder(path, draft_length)
        self.statistics.on_step(lambda record: _record_confidences(recorder, record))

    def serve(self, device: str) -> None:
        """Start the profile server if there is to be one; a port that cannot be had only costs the server.

        device: "cpu" or "gpu", for file names. The rank stands for the number of the device.
        """
        port = self.options.profile_port
        if port is not None:
            self.profile_server = ProfileServer.start(
                port + self.rank if port else 0,
                output_dir=self.options.profile_dir,
                device=f"{device}{self.rank}",
                rank=self.rank,
            )

    def before_step(self) -> None:
        """Called by the engine's thread at the start of each step; never raises."""
        if self.profile_server is not None:
            self.profile_server.tick()

    def close(self) -> None:
        """End their threads. On the engine's thread."""
        if self.profile_server is not None:
            self.profile_server.close()
        self.statistics.close()
        if self.confidence_recorder is not None:
            self.confidence_recorder.close()


def _record_confidences(recorder: ConfidenceRecorder, record: StepRecord) -> None:
    """Rows whose drafts are placeholders have no confidences, and leave no record."""
    outcome = record.outcome
    if record.plan.kind is StepKind.PREFILL:
        return
    rows = (outcome.num_verified > 1) & ~np.isnan(outcome.verified_confidences).any(axis=1)
    recorder.add(outcome.verified_confidences[rows], outcome.num_verified[rows] - 1, outcome.num_accepted[rows] - 1)
