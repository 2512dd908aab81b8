"""Writes a checkpoint of a backbone's files and a trained drafter, in the formats that the loader asks for."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from tools.train.common.quantise import quantise
from tools.train.drafter.settings import draft_specs
from torch import Tensor

from thalweg.interfaces import ConfigError
from thalweg.model import Checkpoint, DraftNetwork, Model, ModelConfig, tensor_specs
from thalweg.model.names import scale_name
from thalweg.model.safetensors_writer import write_index, write_shard
from thalweg.model.survey import INDEX_NAME, read_index

MAX_TENSOR_BYTES = 24_000_000
_WRITTEN_ANEW = ("config.json", INDEX_NAME)
_DTYPES = {"BF16": torch.bfloat16, "F32": torch.float32}
_Stored = tuple[str, tuple[int, ...], bytes]


def export(backbone: Path, config: ModelConfig, masters: Mapping[str, Tensor], out: Path) -> int:
    """Write backbone and drafter to a new folder, check it with the strict loader, return its tensor bytes.

    config: of the backbone, with draft layers; masters: float32 by name. Raises ConfigError for a folder that has files
    and for more than MAX_TENSOR_BYTES.
    """
    if out.exists() and any(out.iterdir()):
        raise ConfigError(f"{out} has files; a new folder is needed")
    old = read_index(backbone)
    shard_of: dict[str, str] = {}
    if any(name.startswith("mtp.") for name in old):
        raise ConfigError(f"{backbone} has a drafter already; a backbone without one is needed")
    total = sum(spec.num_bytes for spec in tensor_specs(config))
    if total > MAX_TENSOR_BYTES:
        raise ConfigError(f"backbone and drafter have {total} tensor bytes; at most {MAX_TENSOR_BYTES} are allowed")
    out.mkdir(parents=True, exist_ok=True)
    shards = sorted(set(old.values()))
    count = len(shards) + 1
    for number, shard in enumerate(shards, 1):
        name = _shard_name(number, count)
        shutil.copyfile(backbone / shard, out / name)
        shard_of |= {tensor: name for tensor, place in old.items() if place == shard}
    drafter = dict(_stored(config, masters))
    write_shard(out / _shard_name(count, count), drafter)
    shard_of |= dict.fromkeys(drafter, _shard_name(count, count))
    for path in backbone.iterdir():
        if path.is_file() and path.suffix != ".safetensors" and path.name not in _WRITTEN_ANEW:
            shutil.copyfile(path, out / path.name)
    (out / "config.json").write_text(json.dumps(config.to_dict(), indent=1) + "\n", encoding="utf-8")
    write_index(out, shard_of, total)
    Checkpoint.open(out, strict=True).close()
    DraftNetwork.load(out, Model.load(out, "plain", "float32"))
    return total


def _shard_name(number: int, count: int) -> str:
    return f"model-{number:05d}-of-{count:05d}.safetensors"


def _stored(config: ModelConfig, masters: Mapping[str, Tensor]) -> Iterator[tuple[str, _Stored]]:
    """Name and stored form of every draft tensor; a scale comes with its weight."""
    for name, spec in draft_specs(config).items():
        values = masters[name].detach().float().cpu()
        if spec.format in ("bf16", "f32"):
            yield name, (spec.dtype, spec.shape, _raw(values.to(_DTYPES[spec.dtype])))
            continue
        codes, scales = quantise(values, spec.format)
        yield name, (spec.dtype, spec.shape, _raw(codes))
        yield scale_name(name), ("F8_E8M0", tuple(scales.shape), _raw(scales))


def _raw(tensor: Tensor) -> bytes:
    return tensor.contiguous().view(torch.uint8).numpy().tobytes()
