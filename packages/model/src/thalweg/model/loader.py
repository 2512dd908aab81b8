"""Open a checkpoint, check all of it from the headers, and hand out its tensors lazily as they are stored."""

from __future__ import annotations

import logging
import math
import mmap
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

import torch

from thalweg.interfaces import CheckpointError, ConfigError
from thalweg.model.config import ModelConfig
from thalweg.model.names import scale_name
from thalweg.model.safetensors_header import TensorHeader
from thalweg.model.survey import Survey, survey_checkpoint

_LOG = logging.getLogger(__name__)
_TABLE_ALIGNMENT = 256
_UNIT_SCALE = 127
_LINUX_NO_RESERVE = 0x4000
_DTYPES = {
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E8M0": torch.float8_e8m0fnu,
    "I8": torch.int8,
    "BF16": torch.bfloat16,
    "F32": torch.float32,
}


class Checkpoint:
    """A checked checkpoint. Tensors are views of the mapped files: no bytes are read before they are used.

    The views are private (writing to one never reaches the file) and stay valid after `close`.
    """

    def __init__(self, survey: Survey) -> None:
        self.directory = survey.directory
        self.config = survey.config
        self.unexpected = tuple(survey.unexpected)
        """Names that the config does not ask for; never handed out."""
        self._survey = survey
        self._maps: dict[str, mmap.mmap] | None = {}

    @classmethod
    def open(cls, directory: str | Path, *, strict: bool = False, config: ModelConfig | None = None) -> Checkpoint:
        """Check index, shards, names, shapes and dtypes against the config, and return the open checkpoint.

        strict: unexpected tensors, and an Engram table that is not in one file with its scales, are errors instead of
        warnings (unexpected `mtp.*` always are errors). config: read from the directory when not given.
        Raises ConfigError, or CheckpointError naming tensor, found and expected.
        """
        survey = survey_checkpoint(directory, ModelConfig.from_file(directory) if config is None else config)
        survey.raise_problems(strict=strict)
        for warning in survey.all_warnings():
            _LOG.warning("%s: %s", survey.directory, warning)
        return cls(survey)

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __contains__(self, name: object) -> bool:
        return name in self._survey.stored

    def __iter__(self) -> Iterator[str]:
        return iter(self._survey.stored)

    def close(self) -> None:
        """Give the files back; tensors already handed out stay valid."""
        self._maps = None

    def header(self, name: str) -> TensorHeader:
        """Dtype, shape and place of a tensor."""
        return self._find(name)[0]

    def tensor(self, name: str) -> torch.Tensor:
        """The tensor as stored: float8_e4m3fn, float8_e8m0fnu (scales), int8 (packed FP4), bfloat16 or float32."""
        header, shard = self._find(name)
        if header.dtype not in _DTYPES:
            raise CheckpointError(f"{name}: dtype is {header.dtype}; readable are {', '.join(_DTYPES)}")
        return self._bytes(header, shard).view(_DTYPES[header.dtype]).reshape(header.shape)

    def codes(self, name: str) -> torch.Tensor:
        """The stored bytes of a one-byte tensor, uint8 in the tensor's own shape."""
        tensor = self.tensor(name)
        if tensor.element_size() != 1:
            raise CheckpointError(f"{name}: dtype is {self.header(name).dtype}; codes are one byte per element")
        return tensor.view(torch.uint8)

    def quantized(self, prefix: str) -> tuple[torch.Tensor, torch.Tensor]:
        """Codes and scales, both uint8, of `<prefix>.weight` and `<prefix>.scale`."""
        weight = f"{prefix}.weight"
        return self.codes(weight), self.codes(scale_name(weight))

    def engram_table(self, layer: int, num_ranks: int | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        """Codes uint8 [rows, width] and scales uint8 [rows, width/32] of a layer's Engram table.

        num_ranks: pad the rows to a multiple of lcm(256, num_ranks), so that ranks hold equal parts; a padding row is
        zero with scale 1. None: exactly the stored rows, without a copy.
        """
        codes, scales = self.quantized(f"layers.{layer}.engram.embed")
        if num_ranks is None:
            return codes, scales
        if num_ranks < 1:
            raise ConfigError(f"num_ranks is {num_ranks}; it must be at least 1")
        padding = -codes.shape[0] % math.lcm(_TABLE_ALIGNMENT, num_ranks)
        return (
            torch.cat([codes, codes.new_zeros(padding, codes.shape[1])]),
            torch.cat([scales, scales.new_full((padding, scales.shape[1]), _UNIT_SCALE)]),
        )

    def _find(self, name: str) -> tuple[TensorHeader, str]:
        stored = self._survey.stored
        found = stored.get(self._survey.tied.get(name, name))
        if found is None:
            raise CheckpointError(f"{name}: not in the checkpoint {self.directory}")
        return found.header, found.shard

    def _bytes(self, header: TensorHeader, shard: str) -> torch.Tensor:
        if self._maps is None:
            raise CheckpointError(f"{self.directory}: is closed; open it again to read {header.name}")
        if header.num_bytes == 0:
            return torch.empty(0, dtype=torch.uint8)
        if shard not in self._maps:
            self._maps[shard] = _map(self.directory / shard, self._survey.shard_bytes[shard])
        raw = torch.frombuffer(self._maps[shard], dtype=torch.uint8, count=header.num_bytes, offset=header.begin)
        misaligned = header.begin % _DTYPES[header.dtype].itemsize
        return raw.clone() if misaligned else raw


def _map(path: Path, file_bytes: int) -> mmap.mmap:
    """Map a file privately; a file that shrank since its header was read would fault on access."""
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size < file_bytes:
                raise CheckpointError(f"{path.name}: short read, {size} bytes are left of {file_bytes}")
            if sys.platform != "linux":
                return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
            # Without the flag the kernel refuses private maps larger than memory, although nobody writes to them.
            flags = mmap.MAP_PRIVATE | getattr(mmap, "MAP_NORESERVE", _LINUX_NO_RESERVE)
            return mmap.mmap(file.fileno(), 0, flags=flags, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    except OSError as error:
        raise CheckpointError(f"{path.name}: cannot be mapped ({error.strerror})") from error
