"""The scheduler core in plain Python: the readable twin of the C++ core, equal to it step by step."""

from thalweg.scheduler.reference.block_pool import BlockPool
from thalweg.scheduler.reference.scheduler import Scheduler

__all__ = ["BlockPool", "Scheduler"]
