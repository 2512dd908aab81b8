import numpy as np
from numpy.typing import NDArray

def build_info() -> dict[str, str]: ...
def plan_reference(
    counts: NDArray[np.float32], num_slots: int, num_ranks: int
) -> tuple[NDArray[np.int32], NDArray[np.int32]]: ...
