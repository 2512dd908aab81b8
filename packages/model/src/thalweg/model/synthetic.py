"""A checkpoint of any config without its bytes: real index and headers, sparse files of the full length."""

from __future__ import annotations

import json
from pathlib import Path

from thalweg.interfaces import ConfigError
from thalweg.model.config import ModelConfig
from thalweg.model.names import TensorSpec, tensor_specs
from thalweg.model.safetensors_writer import header_bytes, write_index


def write_sparse_checkpoint(directory: str | Path, config: ModelConfig, num_shards: int = 48) -> int:
    """Write config.json, index and shards of which only the headers take space on disk; returns the number of tensors.

    For tools that read headers only: every payload byte reads as zero. The file system must support sparse files as
    long as a shard (the released config needs 10 GB each, the two Engram tables about 100 GB).
    """
    if num_shards < 1:
        raise ConfigError(f"num_shards is {num_shards}; it must be at least 1")
    target = Path(directory)
    target.mkdir(parents=True, exist_ok=True)
    (target / "config.json").write_text(json.dumps(config.to_dict()), encoding="utf-8")
    specs = list(tensor_specs(config))
    shard_of: dict[str, str] = {}
    for number, part in enumerate(_cut(specs, num_shards), 1):
        shard = f"model-{number:05d}-of-{num_shards:05d}.safetensors"
        header = header_bytes((spec.name, spec.dtype, spec.shape, spec.num_bytes) for spec in part)
        with (target / shard).open("wb") as file:
            file.write(header)
            file.truncate(len(header) + sum(spec.num_bytes for spec in part))
        shard_of |= dict.fromkeys((spec.name for spec in part), shard)
    write_index(target, shard_of, sum(spec.num_bytes for spec in specs))
    return len(specs)


def _cut(specs: list[TensorSpec], num_shards: int) -> list[list[TensorSpec]]:
    """Equal numbers of tensors per file; an Engram table stays with its scales, which follow it."""
    parts: list[list[TensorSpec]] = []
    begin = 0
    for number in range(1, num_shards + 1):
        end = len(specs) * number // num_shards
        if 0 < end < len(specs) and specs[end].format == "engram" and specs[end].is_scale:
            end += 1
        parts.append(specs[begin:end])
        begin = end
    return parts
