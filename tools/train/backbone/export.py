"""Masters to a checkpoint in the real format: quantised weights, scales, index, config and tokenizer."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

import torch
from tools.train.common.dimensions import small_model
from tools.train.common.quantise import quantise
from tools.train.common.resume import mean_of_points
from torch import Tensor

from thalweg.interfaces import ThalwegError
from thalweg.model import Checkpoint, ModelConfig
from thalweg.model.engram_vocabulary import TOKENIZER_NAME, EngramVocabulary
from thalweg.model.names import TensorSpec, scale_name, tensor_specs
from thalweg.model.safetensors_writer import write_index, write_shard

_SHARD_BYTES = 15 << 20
_DTYPES = {"BF16": torch.bfloat16, "F32": torch.float32}
_Stored = dict[str, tuple[str, tuple[int, ...], bytes]]


def export_checkpoint(directory: Path, config: ModelConfig, masters: Mapping[str, Tensor], tokenizer: Path) -> None:
    """Write a checkpoint that passes the strict loader. masters: by checkpoint name, without scales."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config.to_dict(), indent=1) + "\n", encoding="utf-8")
    if tokenizer.resolve() != (directory / TOKENIZER_NAME).resolve():
        shutil.copyfile(tokenizer, directory / TOKENIZER_NAME)
    shards = _shards(config, masters)
    shard_of: dict[str, str] = {}
    total = 0
    for number, shard in enumerate(shards, 1):
        name = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        total += write_shard(directory / name, shard)
        shard_of |= dict.fromkeys(shard, name)
    write_index(directory, shard_of, total)
    Checkpoint.open(directory, strict=True).close()


def _shards(config: ModelConfig, masters: Mapping[str, Tensor]) -> list[_Stored]:
    """Tensors as stored, in files of limited size; a weight and its scale stay together."""
    specs = {spec.name: spec for spec in tensor_specs(config)}
    shards: list[_Stored] = [{}]
    size = 0
    for spec in specs.values():
        if spec.is_scale:
            continue
        stored = _stored(spec, specs, masters[spec.name].detach().cpu())
        num_bytes = sum(len(data) for _, _, data in stored.values())
        if size + num_bytes > _SHARD_BYTES:
            shards.append({})
            size = 0
        shards[-1] |= stored
        size += num_bytes
    return shards


def _stored(spec: TensorSpec, specs: Mapping[str, TensorSpec], master: Tensor) -> _Stored:
    if spec.dtype in _DTYPES:
        return {spec.name: (spec.dtype, spec.shape, _raw(master.to(_DTYPES[spec.dtype])))}
    codes, scales = quantise(master.float(), spec.format)
    scale = specs[scale_name(spec.name)]
    return {
        spec.name: (spec.dtype, spec.shape, _raw(codes)),
        scale.name: (scale.dtype, scale.shape, _raw(scales)),
    }


def _raw(tensor: Tensor) -> bytes:
    return tensor.contiguous().view(torch.uint8).numpy().tobytes()


def main() -> None:
    """Export the backbone of a resume point, or of the mean of several."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    points = "folder of a resume point; of several, the mean is exported"
    parser.add_argument("--resume", type=Path, required=True, nargs="+", help=points)
    parser.add_argument("--data", type=Path, required=True, help="folder with the tokenizer")
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    options = parser.parse_args()
    tokenizer = options.data / TOKENIZER_NAME
    config = small_model(EngramVocabulary.from_tokenizer_file(tokenizer), drafter=False)
    export_checkpoint(options.out, config, mean_of_points(options.resume), tokenizer)


if __name__ == "__main__":
    try:
        main()
    except ThalwegError as error:
        sys.exit(f"export: {error}")
