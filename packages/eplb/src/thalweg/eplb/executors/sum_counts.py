"""Adding up what the ranks counted."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray


def sum_counts(history: NDArray[Any], group: dist.ProcessGroup | None = None) -> NDArray[np.int32]:
    """The sum of all ranks' histories, on every rank; a collective of a group for host tensors.

    history: [steps, layers, experts] integers, of one shape on all ranks, as `CountingWindow.history` gives them.
    """
    total = torch.from_numpy(history.astype(np.int32))
    dist.all_reduce(total, group=group)
    return np.asarray(total.numpy(), np.int32)
