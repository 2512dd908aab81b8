"""Weights of routed experts in the order in which a device multiplies them: MXFP4 in tiles of 64 rows x 128 columns.

A tile is 4,096 bytes of codes and then 256 bytes of scales, so that one copy fetches it. Its codes are 64 rows as four
16-row operands of a matrix instruction: [operand 4][upper or lower 8 rows][row 8][lane 4][group 4] words of 32 bits. A
word holds eight codes of one row and one group of 32 columns: columns 4 * lane + 0..3 and 16 + 4 * lane + 0..3, one of
each in a byte. The first has its sign and magnitude where e4m3 has them (sign 7, magnitude 4..2: the value times
2^-6). The second has sign 5, magnitude 6, 1, 0: two shifts bring it there.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from thalweg.interfaces import ConfigError
from thalweg.kernels.reference.quant import MX_GROUP, dequantize_mxfp4

TILE_ROWS = 64
TILE_COLUMNS = 128
BLOCK_ROWS = 256
"""What the rows of a weight must be a multiple of: the most that kernels take at once."""
CODE_BYTES = TILE_ROWS * TILE_COLUMNS // 2
TILE_BYTES = CODE_BYTES + TILE_ROWS * TILE_COLUMNS // MX_GROUP

_NIBBLES = torch.arange(16)
_FIRST = ((_NIBBLES & 8) << 4 | (_NIBBLES & 7) << 2).to(torch.uint8)
_SECOND = ((_NIBBLES & 8) << 2 | (_NIBBLES & 4) << 4 | (_NIBBLES & 3)).to(torch.uint8)


@dataclass(frozen=True, slots=True)
class ExpertWeights:
    """MXFP4 weights of all experts of one linear layer, packed."""

    tiles: Tensor
    """uint8 [E, o / 64, i / 128, 4352]"""

    @staticmethod
    def empty(num_experts: int, out_features: int, in_features: int, device: torch.device | str) -> ExpertWeights:
        """Room for weights, to be stored expert by expert. Raises ConfigError for sizes that tiles do not divide."""
        for name, size, tile in (
            ("out_features", out_features, BLOCK_ROWS),
            ("in_features", in_features, TILE_COLUMNS),
        ):
            if size <= 0 or size % tile:
                raise ConfigError(f"{name} of an expert is {size}; it must be a positive multiple of {tile}")
        shape = (num_experts, out_features // TILE_ROWS, in_features // TILE_COLUMNS, TILE_BYTES)
        return ExpertWeights(torch.empty(shape, dtype=torch.uint8, device=device))

    @property
    def num_experts(self) -> int:
        """E"""
        return self.tiles.shape[0]

    @property
    def out_features(self) -> int:
        """o"""
        return self.tiles.shape[1] * TILE_ROWS

    @property
    def in_features(self) -> int:
        """i"""
        return self.tiles.shape[2] * TILE_COLUMNS

    def store(self, expert: int, codes: Tensor, scales: Tensor) -> None:
        """Pack one expert: codes uint8 [o, i / 2], scales uint8 [o, i / 32], on any device."""
        rows, columns = self.out_features, self.in_features
        for name, tensor, width in (("codes", codes, columns // 2), ("scales", scales, columns // MX_GROUP)):
            if tensor.dtype != torch.uint8 or tuple(tensor.shape) != (rows, width):
                raise ConfigError(
                    f"{name} of an expert are {tensor.dtype} {list(tensor.shape)}; uint8 {[rows, width]} is required"
                )
        device = self.tiles.device
        packed = self.tiles[expert]
        packed[..., :CODE_BYTES] = _pack_codes(codes.to(device)).view(*packed.shape[:2], CODE_BYTES)
        packed[..., CODE_BYTES:] = _by_tile(scales.to(device), TILE_COLUMNS // MX_GROUP)

    def dequantized(self, expert: int) -> Tensor:
        """Values float32 [o, i] of one expert."""
        packed = self.tiles[expert]
        codes = _unpack_codes(packed[..., :CODE_BYTES], self.in_features)
        scales = packed[..., CODE_BYTES:].reshape(*packed.shape[:2], TILE_ROWS, -1).transpose(1, 2)
        return dequantize_mxfp4(codes, scales.reshape(self.out_features, -1))


def pack_expert_weights(codes: Tensor, scales: Tensor) -> ExpertWeights:
    """Pack codes uint8 [E, o, i / 2] (even column in the low nibble) and scales uint8 [E, o, i / 32] of experts.

    Needs memory for one expert beside the result. Where the checkpoint's tensors and the packed ones do not fit side by
    side, make `ExpertWeights.empty` and `store` one expert after the other. o must be a multiple of 256, i of 128.
    """
    if codes.dim() != 3 or scales.dim() != 3 or codes.shape[0] != scales.shape[0]:
        raise ConfigError(
            f"codes are {list(codes.shape)} and scales {list(scales.shape)}; "
            "[E, o, i / 2] and [E, o, i / 32] are required"
        )
    weights = ExpertWeights.empty(codes.shape[0], codes.shape[1], 2 * codes.shape[2], codes.device)
    for expert in range(codes.shape[0]):
        weights.store(expert, codes[expert], scales[expert])
    return weights


def _by_tile(values: Tensor, width: int) -> Tensor:
    """[o, columns] as [o / 64, columns / width, 64 * width]."""
    rows, columns = values.shape
    tiles = values.view(rows // TILE_ROWS, TILE_ROWS, columns // width, width).transpose(1, 2)
    return tiles.reshape(rows // TILE_ROWS, columns // width, TILE_ROWS * width)


def _pack_codes(codes: Tensor) -> Tensor:
    """codes [o, i / 2] -> bytes [o / 64, i / 128, operand 4, half 2, row 8, lane 4, group 4, byte 4]."""
    rows, pairs = codes.shape
    first, second = _FIRST.to(codes.device), _SECOND.to(codes.device)
    # Per group: 16 bytes of two columns each; the first eight are those of the words' first codes.
    shape = (rows // TILE_ROWS, 4, 2, 8, 2 * pairs // TILE_COLUMNS, 4, 2, 4, 2)
    parts = codes.view(shape).unbind(6)
    low = [table[(part & 15).int()] for table, part in zip((first, second), parts, strict=True)]
    high = [table[(part >> 4).int()] for table, part in zip((first, second), parts, strict=True)]
    words = torch.stack((low[0] | low[1], high[0] | high[1]), -1).flatten(-2)
    # [block, operand, half, row, column tile, group, lane, byte] -> the order of a tile
    return words.permute(0, 4, 1, 2, 3, 6, 5, 7).contiguous()


def _unpack_codes(packed: Tensor, columns: int) -> Tensor:
    """Codes [o, i / 2] of the packed ones [o / 64, i / 128, 4096]."""
    blocks, steps, _ = packed.shape
    words = packed.reshape(blocks, steps, 4, 2, 8, 4, 4, 4).permute(0, 2, 3, 4, 1, 6, 5, 7)
    first = (words >> 4 & 8) | (words >> 2 & 7)
    second = (words >> 2 & 8) | (words >> 4 & 4) | (words & 3)
    nibbles = torch.stack((first, second), 6).reshape(blocks * TILE_ROWS, columns // 2, 2)
    return nibbles[..., 0] | (nibbles[..., 1] << 4)
