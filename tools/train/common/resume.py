"""Resume points: everything that the next invocation needs, in a few files of limited size.

Weights come in the dtypes in which they are to be kept; the moments of the optimiser are not stored.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from thalweg.interfaces import CheckpointError, ConfigError

MAX_FILES = 7
MAX_FILE_BYTES = 16 << 20
MAX_BYTES = 56 << 20
_SHARD_BYTES = 15 << 20
_PROGRESS = "progress.json"
_SHARD = re.compile(r"weights-(\d+)\.safetensors")


def save_resume_point(directory: Path, tensors: Mapping[str, Tensor], progress: Mapping[str, Any]) -> None:
    """Write weights and progress (JSON values) over whatever resume point the directory holds.

    Raises ConfigError when the files would be too many or too large.
    """
    directory.mkdir(parents=True, exist_ok=True)
    for path in _files(directory):
        path.unlink()
    for number, shard in enumerate(_cut(tensors), 1):
        save_file(shard, directory / f"weights-{number}.safetensors")
    (directory / _PROGRESS).write_text(json.dumps(dict(progress), indent=1) + "\n", encoding="utf-8")
    sizes = [path.stat().st_size for path in _files(directory)]
    if len(sizes) > MAX_FILES or max(sizes) > MAX_FILE_BYTES or sum(sizes) > MAX_BYTES:
        raise ConfigError(
            f"the resume point has {len(sizes)} files of {sum(sizes)} bytes, the largest of {max(sizes)}; "
            f"at most {MAX_FILES} of {MAX_FILE_BYTES} and {MAX_BYTES} in all are allowed"
        )


def load_resume_point(directory: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Weights in the dtypes they were stored in, and progress. Raises CheckpointError when there is none."""
    path = directory / _PROGRESS
    if not path.is_file():
        raise CheckpointError(f"{directory}: holds no {_PROGRESS}; a resume point needs one")
    tensors: dict[str, Tensor] = {}
    for shard in _files(directory):
        if shard != path:
            tensors |= load_file(shard)
    return tensors, json.loads(path.read_text(encoding="utf-8"))


def mean_of_points(directories: Sequence[Path]) -> dict[str, Tensor]:
    """The mean of the weights of resume points, float32. Raises ConfigError when they are not of one model."""
    points = [load_resume_point(directory)[0] for directory in directories]
    shapes = [{name: tensor.shape for name, tensor in point.items()} for point in points]
    for directory, found in zip(directories, shapes, strict=True):
        if found != shapes[0]:
            raise ConfigError(f"{directory}: names or shapes of weights differ from those of {directories[0]}")
    return {name: torch.stack([point[name].float() for point in points]).mean(0) for name in points[0]}


def _files(directory: Path) -> list[Path]:
    """The files of the resume point that a directory holds."""
    return [path for path in sorted(directory.iterdir()) if path.name == _PROGRESS or _SHARD.fullmatch(path.name)]


def _cut(tensors: Mapping[str, Tensor]) -> list[dict[str, Tensor]]:
    """The tensors as they are stored, in shards."""
    shards: list[dict[str, Tensor]] = [{}]
    size = 0
    for name, tensor in tensors.items():
        stored = tensor.detach().cpu().contiguous()
        if size + stored.nbytes > _SHARD_BYTES and shards[-1]:
            shards.append({})
            size = 0
        shards[-1][name] = stored
        size += stored.nbytes
    return shards
