from typing import Any

import numpy as np
from numpy.typing import NDArray

class Splitter:
    def __init__(self, logical_of_physical: NDArray[np.int32], num_ranks: int, num_experts: int) -> None: ...
    def split(self, tokens: NDArray[np.int32], sweeps: int) -> NDArray[np.int32]: ...
    def split_layer(self, layer: int, tokens: NDArray[np.int32], sweeps: int) -> NDArray[np.int32]: ...

def build_info() -> dict[str, str]: ...
def plan_reference(
    counts: NDArray[np.float32], num_slots: int, num_ranks: int
) -> tuple[NDArray[np.int32], NDArray[np.int32]]: ...
def search_layers(
    history: NDArray[np.integer[Any]] | NDArray[np.floating[Any]],
    num_slots: int,
    num_ranks: int,
    current: NDArray[np.int32] | None,
    proposals: int,
    move_price: float,
    min_gain: float,
    seed: int,
) -> NDArray[np.int32]: ...
