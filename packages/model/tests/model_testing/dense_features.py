"""Target features of a whole sequence from the traced trunk, without the package's collector."""

from __future__ import annotations

import torch
from torch import Tensor

from thalweg.model import Checkpoint, Model, Trace

TRAPS = ("outputs of the target layers", "target layers in reverse", "before Engram", "stream 0 alone")


def dense_features(model: Model, checkpoint: Checkpoint, tokens: Tensor, trap: str = "") -> Tensor:
    """[P, L * h] of the layers that the config names."""
    trace, config = Trace(), model.config
    model.forward_sequences([tokens], trace=trace)
    layers = config.dspark_target_layer_ids
    parts = []
    for layer in reversed(layers) if trap == "target layers in reverse" else layers:
        if trap == "outputs of the target layers":
            trunk = trace["trunk", layer]
        elif layer == 0:
            embedded = checkpoint.tensor("embed.weight").double()[tokens]
            trunk = embedded[:, None].expand(-1, config.hc_mult, -1)
        else:
            trunk = trace["trunk", layer - 1]
        if layer in config.engram_layer_ids and trap not in ("before Engram", "outputs of the target layers"):
            trunk = _with_engram(model, checkpoint, trace, layer, trunk)
        mean = trunk[:, 0] if trap == "stream 0 alone" else trunk.double().mean(1)
        parts.append(mean.float().bfloat16().double() if model.numerics.is_quant else mean)
    return torch.cat(parts, -1)


def _with_engram(model: Model, checkpoint: Checkpoint, trace: Trace, layer: int, trunk: Tensor) -> Tensor:
    """The trunk after Engram, from the traced hashes and gates."""
    config = model.config
    codes, scales = checkpoint.engram_table(layer)
    rows = trace["hash", layer]
    table = codes.view(torch.float8_e4m3fn)[rows].double()
    table = table * 2.0 ** (scales[rows].double() - 127).repeat_interleave(32, -1)
    weight, exponents = checkpoint.quantized(f"layers.{layer}.engram.wkv")
    spread = (exponents.double() - 127).repeat_interleave(32, 0).repeat_interleave(32, 1)
    dense = weight.view(torch.float8_e4m3fn).double() * 2.0 ** spread[: weight.shape[0], : weight.shape[1]]
    value = (table.flatten(1) @ dense.T).unflatten(1, (config.hc_mult + 1, -1))[:, -1]
    is_quant = model.numerics.is_quant
    value = value.float().bfloat16().double() if is_quant else value
    mixed = trunk + trace["engram_gate", layer][:, :, None] * value[:, None]
    return mixed.float().bfloat16().double() if is_quant else mixed
