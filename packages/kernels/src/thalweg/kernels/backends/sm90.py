"""The backend of Hopper GPUs (H100, H200): TileLang kernels for sm_90a."""

from __future__ import annotations

from typing import TYPE_CHECKING

from thalweg.kernels.backends.cuda import CudaBackend
from thalweg.kernels.sm90.library import ARCHITECTURE, check_tilelang

if TYPE_CHECKING:
    from thalweg.interfaces import Backend


class Sm90Backend(CudaBackend):
    """thalweg.interfaces.Backend for one Hopper GPU.

    Raises BackendUnavailableError without such a GPU, or without the TileLang that its kernels are written for.
    """

    def __init__(self) -> None:
        super().__init__("sm90", (9, 0), ARCHITECTURE)
        check_tilelang()


if TYPE_CHECKING:
    _satisfies_the_protocol: Backend = Sm90Backend()
