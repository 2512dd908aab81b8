"""How many ranks there are and how they talk."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from thalweg.interfaces.checks import shown
from thalweg.interfaces.errors import ConfigError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelConfig:
    """Sizes of the parallel groups; 1 everywhere is a single process."""

    expert: int = 1
    data: int = 1
    context: int = 1
    engram: int = 1

    def __post_init__(self) -> None:
        for name in ("expert", "data", "context", "engram"):
            value = getattr(self, name)
            if not isinstance(value, int) or value != 1:
                raise ConfigError(
                    f"{name}_parallel_size is {shown(value)}; this version runs one process, so it must be 1"
                )


class Communicator(Protocol):
    """Host-side agreement between the ranks of one group."""

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    def all_reduce_min(self, values: NDArray[np.int32]) -> NDArray[np.int32]:
        """Element-wise minimum over the group; raises PeerDiedError after the group's timeout."""

    def all_reduce_max(self, values: NDArray[np.int32]) -> NDArray[np.int32]:
        """Element-wise maximum over the group; raises PeerDiedError after the group's timeout."""

    def fail(self, reason: str) -> None:
        """Tell the others that this rank cannot go on: their present or next reduction raises PeerDiedError."""
