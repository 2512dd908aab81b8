"""Where expert copies live."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Placement:
    """Copies of logical experts in physical slots."""

    logical_of_physical: NDArray[np.int32]
    """[layers, slots] logical expert in each physical slot; rank r owns slots r*S/ranks .. (r+1)*S/ranks - 1."""
    num_ranks: int


@dataclass(frozen=True, slots=True)
class ExpertLoad:
    """Routed tokens per logical expert."""

    counts: NDArray[np.int64]
    """[steps, layers, experts]"""
