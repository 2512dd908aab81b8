"""How many draft tokens of each sequence a decode step verifies, from their confidences and measured step times."""

from thalweg.dspark.__about__ import __version__
from thalweg.dspark.acceptance import AcceptanceStatistics
from thalweg.dspark.budget import ThroughputBudget
from thalweg.dspark.curve import StepTimeCurve, graph_sizes
from thalweg.dspark.curve_cache import CurveCache
from thalweg.dspark.curve_file import read_curve, write_curve
from thalweg.dspark.curve_key import CurveKey
from thalweg.dspark.estimators import SamplerTimeEstimator, SlopeEstimator
from thalweg.dspark.recorder import ConfidenceRecorder
from thalweg.dspark.records import ConfidenceRecords, read_records
from thalweg.dspark.redistribute import redistribute
from thalweg.dspark.temperatures import parse_temperatures

__all__ = [
    "AcceptanceStatistics",
    "ConfidenceRecorder",
    "ConfidenceRecords",
    "CurveCache",
    "CurveKey",
    "SamplerTimeEstimator",
    "SlopeEstimator",
    "StepTimeCurve",
    "ThroughputBudget",
    "__version__",
    "graph_sizes",
    "parse_temperatures",
    "read_curve",
    "read_records",
    "redistribute",
    "write_curve",
]
