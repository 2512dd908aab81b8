"""Coefficients of hyper-connections on Hopper: a product of the trunk with float32 weights, and what follows it.

The sum over a row's columns is formed in pieces, those of a fan are added in order, then the fans of a quarter, then
the quarters. For few rows every piece is a block's, so that many read the weights at once; for more rows a block has a
fan or a quarter. The order stays the same, and with it the bits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from thalweg.interfaces import ConfigError
from thalweg.kernels.native_formats import HcMix
from thalweg.kernels.reference.fused_rows import check_rows
from thalweg.kernels.sm90.declared import implementation
from thalweg.kernels.sm90.hyper_connections_finish import SLOTS, finish_kernel
from thalweg.kernels.sm90.hyper_connections_product import (
    MOST_BLOCK_ROWS,
    PLANES,
    Division,
    Launch,
    division_of,
    plane_kernel,
    product_kernel,
)
from thalweg.kernels.sm90.row_parts import check_contiguous
from thalweg.kernels.sm90.tensors import check_device

STREAMS = (2, 4)
PIECE_ROWS, FAN_ROWS, QUARTER_ROWS = 128, 2048, 4096
"""Up to so many rows a block has a piece, a fan, and a quarter of 128 rows, beyond one of 256: mostly no more blocks
than processors, since one fills a processor."""
SHORT_FAN_ROWS = 512
"""Up to so many rows a fan is one of 64 rows, beyond of 128."""


def launch_for(num_rows: int, division: Division) -> Launch:
    """How blocks share the work on a number of rows."""
    if num_rows <= PIECE_ROWS:
        return Launch(64, division.pieces, has_planes=False)
    if num_rows <= FAN_ROWS:
        return Launch(64 if num_rows <= SHORT_FAN_ROWS else 128, division.fans, has_planes=True)
    return Launch(128 if num_rows <= QUARTER_ROWS else MOST_BLOCK_ROWS, division.quarters, has_planes=True)


def finish_for(streams: int, width: int, launch: Launch) -> Any:
    """The kernel that completes what a launch leaves."""
    division = division_of(streams * width)
    fan_pieces = division.fan_pieces if launch.blocks == division.pieces else 1
    quarter_fans = division.quarter_fans if launch.blocks >= division.fans else 1
    rows = {division.pieces: 2, division.fans: 4}.get(launch.blocks, 16)
    return finish_kernel(streams, width, division.quarters, quarter_fans, fan_pieces, rows)


def hc_mix(
    trunk: Tensor, fn: Tensor, scale: Tensor, base: Tensor, norm_eps: float, mix_eps: float, iterations: int
) -> HcMix:
    """As the reference, for 2 or 4 streams."""
    _check(trunk, fn, scale, base, iterations)
    n, streams, width = trunk.shape
    shapes = ((n, streams), (n, streams), (n, streams, streams))
    mix = HcMix(*(torch.empty(shape, dtype=torch.float32, device=trunk.device) for shape in shapes))
    if n:
        launch = launch_for(n, division_of(streams * width))
        partial = torch.empty(launch.blocks, n, SLOTS, dtype=torch.float32, device=trunk.device)
        with torch.cuda.device(trunk.device):
            weights = _planes(fn) if launch.has_planes else fn
            product_kernel(streams, width, launch)(trunk.view(n, -1), weights, partial)
            finish = finish_for(streams, width, launch)
            finish(partial, scale, base, mix.next_read, mix.write, mix.carry.view(n, -1), norm_eps, mix_eps, iterations)
    return mix


def _planes(fn: Tensor) -> Tensor:
    mixes, columns = fn.shape
    planes = torch.empty(PLANES * mixes, columns, dtype=torch.bfloat16, device=fn.device)
    plane_kernel(mixes, columns)(fn, planes)
    return planes


def _check(trunk: Tensor, fn: Tensor, scale: Tensor, base: Tensor, iterations: int) -> None:
    check_rows("trunk", trunk, torch.bfloat16, ("n", "m", "h"))
    streams, width = trunk.shape[1:]
    if streams not in STREAMS:
        raise ConfigError(f"trunk has {streams} streams; {' or '.join(map(str, STREAMS))} are required")
    mixes = (2 + streams) * streams
    check_rows("fn", fn, torch.float32, (mixes, streams * width))
    check_rows("scale", scale, torch.float32, (3,))
    check_rows("base", base, torch.float32, (mixes,))
    if iterations < 1:
        raise ConfigError(f"iterations is {iterations}; at least 1 column division is needed")
    check_contiguous(trunk=trunk, fn=fn)
    check_device(trunk=trunk, fn=fn, scale=scale, base=base)
    division_of(streams * width)


IMPLEMENTATIONS = (implementation(hc_mix),)

COMPILE_EXAMPLES: dict[str, Callable[[str], Any]] = {
    "hc_mix_planes": lambda architecture: plane_kernel(24, 20480, architecture),
    "hc_mix_product": lambda architecture: product_kernel(4, 5120, Launch(256, 4, True), architecture),
    "hc_mix_finish": lambda architecture: finish_kernel(4, 5120, 4, 4, 5, 2, architecture),
}
