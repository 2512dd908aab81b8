"""A checkpoint whose texts are known: the next token depends on the newest one alone, and its drafter knows how.

Attention, experts and n-gram tables of the backbone run and add nothing to the trunk, so the final hidden row is a
function of the newest token. The Markov head of the drafter holds these rows and the language-model head; its base
logits are zero. Its distributions are then those of the target model, to the last bit.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import torch

from thalweg.model import ForwardBatch, Model, ModelConfig, small_config, write_random_checkpoint
from thalweg.model.memory import SequenceMemory

_SILENT = ("attn.wo_b.weight", ".w2.weight", "engram.wkv.weight")


def write_chain_checkpoint(directory: Path, seed: int = 0) -> ModelConfig:
    """Two draft layers, blocks of five. Confidences depend on the token before the draft."""
    config = small_config(
        num_hidden_layers=4,
        compress_ratios=[0, 2, 1, 1],
        kv_source_layer_ids=[1, 2],
        index_source_layer_ids=[1, 2, 3],
        candidate_source_layer_id=2,
        engram_layer_ids=[1],
        num_nextn_predict_layers=2,
        dspark_markov_rank=64,
    )
    config = write_random_checkpoint(directory, config, seed)
    names = json.loads((directory / "model.safetensors.index.json").read_text())["weight_map"]
    overwrite(directory, {name: None for name in names if name.startswith("layers.") and name.endswith(_SILENT)})
    model = Model.load(directory)
    last = f"mtp.{config.num_draft_layers - 1}"
    overwrite(
        directory,
        {
            f"{last}.norm.weight": None,
            f"{last}.markov_head.embed.weight": _final_rows(model).bfloat16(),
            f"{last}.markov_head.head.weight": model.parameters["head.weight"].bfloat16(),
        },
    )
    return config


def overwrite(directory: Path, tensors: Mapping[str, torch.Tensor | None]) -> dict[str, torch.Tensor]:
    """Replace the bytes of stored tensors, None by zeros; returns what was there, as bytes."""
    index = json.loads((directory / "model.safetensors.index.json").read_text())["weight_map"]
    before = {}
    for name, tensor in tensors.items():
        with (directory / index[name]).open("r+b") as file:
            header_bytes = int.from_bytes(file.read(8), "little")
            begin, end = json.loads(file.read(header_bytes))[name]["data_offsets"]
            file.seek(8 + header_bytes + begin)
            before[name] = torch.frombuffer(bytearray(file.read(end - begin)), dtype=torch.uint8)
            content = (
                torch.zeros_like(before[name]) if tensor is None else tensor.contiguous().flatten().view(torch.uint8)
            )
            assert content.numel() == end - begin, name
            file.seek(8 + header_bytes + begin)
            file.write(content.numpy().tobytes())
    return before


def _final_rows(model: Model) -> torch.Tensor:
    """[V, h] the hidden row that the language-model head sees after each token."""
    vocab_size = model.config.vocab_size
    memory = SequenceMemory(model.config, [1] * vocab_size, model.numerics)
    tokens = torch.arange(vocab_size)
    ngrams = torch.zeros(vocab_size, model.config.engram_max_ngram_size, dtype=torch.int64)
    with torch.inference_mode():
        return model.forward(ForwardBatch(tokens, memory.positions, ngrams), memory)
