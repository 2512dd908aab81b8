"""How many draft tokens of each sequence a decode step verifies, from their confidences and measured step times."""

from thalweg.dspark.__about__ import __version__
from thalweg.dspark.budget import ThroughputBudget
from thalweg.dspark.curve import StepTimeCurve, graph_sizes
from thalweg.dspark.estimators import SamplerTimeEstimator, SlopeEstimator
from thalweg.dspark.redistribute import redistribute

__all__ = [
    "SamplerTimeEstimator",
    "SlopeEstimator",
    "StepTimeCurve",
    "ThroughputBudget",
    "__version__",
    "graph_sizes",
    "redistribute",
]
