"""Moving expert weights between ranks with torch; needs the extra `torch`."""

from thalweg.eplb.executors.live_tables import LiveTables
from thalweg.eplb.executors.point_to_point import PointToPoint
from thalweg.eplb.executors.rearranger import Rearranger, Transport
from thalweg.eplb.executors.shared_memory import SharedMemory
from thalweg.eplb.executors.store_channel import StoreChannel
from thalweg.eplb.executors.sum_counts import sum_counts
from thalweg.eplb.executors.symmetric_memory import SymmetricMemory

__all__ = [
    "LiveTables",
    "PointToPoint",
    "Rearranger",
    "SharedMemory",
    "StoreChannel",
    "SymmetricMemory",
    "Transport",
    "sum_counts",
]
