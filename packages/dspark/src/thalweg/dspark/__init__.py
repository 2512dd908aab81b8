"""How many drafts a decode step verifies: budget, step-time curve, acceptance, calibration of confidences, planning."""

from thalweg.dspark.__about__ import __version__
from thalweg.dspark._checks import MAX_DRAFT_LENGTH
from thalweg.dspark.acceptance import AcceptanceStatistics
from thalweg.dspark.acceptance_file import read_survival, write_acceptance
from thalweg.dspark.budget import ThroughputBudget
from thalweg.dspark.calibration import Calibration, PositionFit, Quality, calibrate
from thalweg.dspark.calibration_file import read_temperatures, write_calibration
from thalweg.dspark.curve import StepTimeCurve, graph_sizes
from thalweg.dspark.curve_cache import CurveCache
from thalweg.dspark.curve_file import read_curve, write_curve
from thalweg.dspark.curve_key import CurveKey
from thalweg.dspark.estimators import SamplerTimeEstimator, SlopeEstimator
from thalweg.dspark.planning import PlanRow, Throughput, plan
from thalweg.dspark.plots import plot_calibration, plot_plan
from thalweg.dspark.recorder import ConfidenceRecorder
from thalweg.dspark.records import ConfidenceRecords, join_records, read_records
from thalweg.dspark.redistribute import redistribute
from thalweg.dspark.reliability import Reliability
from thalweg.dspark.temperatures import parse_temperatures
from thalweg.dspark.workload import Batches, BetaWorkload, MeasuredWorkload, Workload, workload_of_records

__all__ = [
    "MAX_DRAFT_LENGTH",
    "AcceptanceStatistics",
    "Batches",
    "BetaWorkload",
    "Calibration",
    "ConfidenceRecorder",
    "ConfidenceRecords",
    "CurveCache",
    "CurveKey",
    "MeasuredWorkload",
    "PlanRow",
    "PositionFit",
    "Quality",
    "Reliability",
    "SamplerTimeEstimator",
    "SlopeEstimator",
    "StepTimeCurve",
    "Throughput",
    "ThroughputBudget",
    "Workload",
    "__version__",
    "calibrate",
    "graph_sizes",
    "join_records",
    "parse_temperatures",
    "plan",
    "plot_calibration",
    "plot_plan",
    "read_curve",
    "read_records",
    "read_survival",
    "read_temperatures",
    "redistribute",
    "workload_of_records",
    "write_acceptance",
    "write_calibration",
    "write_curve",
]
