"""Profiles of a running engine, asked for over HTTP."""

from thalweg.engine.profiling.request import ProfileRequest
from thalweg.engine.profiling.server import ProfileServer
from thalweg.engine.profiling.step_profiler import (
    ProfileBusyError,
    ProfileFailedError,
    ProfileTimeoutError,
    StepProfiler,
)

__all__ = [
    "ProfileBusyError",
    "ProfileFailedError",
    "ProfileRequest",
    "ProfileServer",
    "ProfileTimeoutError",
    "StepProfiler",
]
