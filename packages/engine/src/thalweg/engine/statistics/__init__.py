"""What the engine measures about itself: totals, the periodic line, callbacks, Prometheus metrics."""

from thalweg.engine.statistics.figures import Capacity, Endings, Figures, Load, Speculation, Speed, Timing
from thalweg.engine.statistics.record import StepRecord
from thalweg.engine.statistics.step_statistics import StepStatistics
from thalweg.engine.statistics.totals import StepTotals

__all__ = [
    "Capacity",
    "Endings",
    "Figures",
    "Load",
    "Speculation",
    "Speed",
    "StepRecord",
    "StepStatistics",
    "StepTotals",
    "Timing",
]
