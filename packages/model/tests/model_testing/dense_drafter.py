"""The drafter a second time: whole sequences, no cache, straight from the stored tensors and the equations.

Everything is float64; `quant` mode rounds where the model does. It shares with the package the file reader and the
quantisers of activations, nothing else. A trap makes one plausible mistake, to prove that comparing would show it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from thalweg.kernels.reference.quant import fake_mxfp8
from thalweg.model import Checkpoint

TRAPS = (
    "anchor at the position before",
    "causal block",
    "window one longer",
    "window one shorter",
    "confidence after the norm",
    "confidence from the drawn token",
    "confidence without Markov row",
    "no Markov bias",
    "Markov bias of the anchor throughout",
    "image bias",
    "rope of compressed layers",
    "no shared expert",
    "draft keys not quantised",
    "main keys at the next position",
    "noise without the anchor",
    "sink with a value",
    "last layer skipped",
    "one expert fewer",
)


class DenseDrafter:
    """Drafts of one sequence after the other. Letters: P positions, G block rows, m streams, h hidden, D head dim."""

    def __init__(self, directory: Path, mode: str = "quant", trap: str = "") -> None:
        with Checkpoint.open(directory) as checkpoint:
            names = [name for name in checkpoint if name.startswith("mtp.")]
            names += ["embed.weight"] if checkpoint.config.tie_word_embeddings else ["embed.weight", "head.weight"]
            self.stored = {name: checkpoint.tensor(name) for name in names}
            self.config = checkpoint.config
        self.trap = trap
        self.plain, self.fp8_weight, self.fp4_weight = map(cache, (self._plain, self._fp8_weight, self._fp4_weight))
        is_quant = mode == "quant"
        self.bf16: Callable[[Tensor], Tensor] = (lambda x: x.float().bfloat16().double()) if is_quant else (lambda x: x)
        self.f32: Callable[[Tensor], Tensor] = (lambda x: x.float().double()) if is_quant else (lambda x: x)
        self.fp8: Callable[[Tensor], Tensor] = fake_mxfp8 if is_quant else (lambda x: x)

    # Stored tensors

    def _plain(self, name: str) -> Tensor:
        return self.stored[name].double()

    def _fp8_weight(self, name: str) -> Tensor:
        codes = self.stored[f"{name}.weight"].double()
        exponents = self.stored[f"{name}.scale"].view(torch.uint8).double() - 127
        spread = exponents.repeat_interleave(32, 0).repeat_interleave(32, 1)
        return codes * 2.0 ** spread[: codes.shape[0], : codes.shape[1]]

    def _fp4_weight(self, name: str) -> Tensor:
        packed = self.stored[f"{name}.weight"].view(torch.uint8).long()
        codes = torch.stack((packed & 15, packed >> 4), -1).flatten(1)
        magnitude = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6], dtype=torch.float64)[codes & 7]
        exponents = self.stored[f"{name}.scale"].view(torch.uint8).double() - 127
        return torch.where(codes > 7, -magnitude, magnitude) * 2.0 ** exponents.repeat_interleave(32, 1)

    # Parts

    def norm(self, x: Tensor, name: str) -> Tensor:
        return self.bf16(x / (x.square().mean(-1, keepdim=True) + self.config.rms_norm_eps).sqrt() * self.plain(name))

    def linear(self, x: Tensor, name: str) -> Tensor:
        return self.bf16(self.fp8(x) @ self.fp8_weight(name).T)

    def rope(self, x: Tensor, positions: Tensor, direction: int = 1) -> Tensor:
        """x: [P, ..., D]"""
        config = self.config
        width = config.qk_rope_head_dim
        theta = config.compress_rope_theta if self.trap == "rope of compressed layers" else config.rope_theta
        frequencies = 1.0 / (theta ** (torch.arange(0, width, 2, dtype=torch.float32) / width))
        angles = positions.float()[:, None] * frequencies
        turn = torch.complex(angles.cos().double(), direction * angles.sin().double())
        turn = turn.view(len(x), *[1] * (x.dim() - 2), width // 2)
        pairs = torch.view_as_complex(x[..., -width:].unflatten(-1, (-1, 2)).contiguous())
        return self.bf16(torch.cat([x[..., :-width], torch.view_as_real(pairs * turn).flatten(-2)], -1))

    def key(self, x: Tensor, block: int, positions: Tensor) -> Tensor:
        prefix = f"mtp.{block}.attn."
        return self.rope(self.norm(self.linear(x, f"{prefix}wkv"), f"{prefix}kv_norm.weight"), positions)

    def main_keys(self, features: Tensor) -> list[Tensor]:
        """Per draft layer the keys [P, D] of all positions, from features [P, L * h]."""
        positions = torch.arange(len(features)) + (self.trap == "main keys at the next position")
        main = self.norm(self.linear(features.double(), "mtp.0.main_proj"), "mtp.0.main_norm.weight")
        return [self.fp8(self.key(main, block, positions)) for block in range(self.config.num_draft_layers)]

    def mixes(self, trunk: Tensor, name: str) -> tuple[Tensor, Tensor, Tensor]:
        """Weights of the next read [n, m], of the write [n, m] and of the carry [n, m, m]."""
        config, m = self.config, self.config.hc_mult
        flat = trunk.flatten(1)
        root = (flat.square().mean(-1, keepdim=True) + config.rms_norm_eps).sqrt()
        raw = self.f32(flat @ self.plain(f"{name}_fn").T / root)
        scales = self.plain(f"{name}_scale").repeat_interleave(torch.tensor([m, m, m * m]))
        raw = raw * scales + self.plain(f"{name}_base")
        carry = raw[:, 2 * m :].view(-1, m, m).softmax(-1) + config.hc_eps
        carry = carry / (carry.sum(1, keepdim=True) + config.hc_eps)
        for _ in range(config.hc_sinkhorn_iters - 1):
            carry = carry / (carry.sum(2, keepdim=True) + config.hc_eps)
            carry = carry / (carry.sum(1, keepdim=True) + config.hc_eps)
        read, write = raw[:, :m].sigmoid() + config.hc_eps, 2 * raw[:, m : 2 * m].sigmoid()
        return self.f32(read), self.f32(write), self.f32(carry)

    def sub_layer(
        self, trunk: Tensor, read: Tensor, prefix: str, part: str, layer: Callable[[Tensor], Tensor]
    ) -> tuple[Tensor, Tensor]:
        normed = self.norm(self.collapsed(trunk, read), f"{prefix}{part}_norm.weight")
        next_read, write, carry = self.mixes(trunk, f"{prefix}hc_{part}")
        output = layer(normed)
        kept = torch.einsum("njk,njh->nkh", carry, trunk)
        return self.bf16(write[:, :, None] * output[:, None] + kept), next_read

    def collapsed(self, trunk: Tensor, read: Tensor) -> Tensor:
        return self.bf16(torch.einsum("nm,nmh->nh", read, trunk))

    def attention(self, x: Tensor, block: int, positions: Tensor, past: Tensor) -> Tensor:
        """x: [G, h]; past: [k, D] main keys that the block sees."""
        config, prefix, rows = self.config, f"mtp.{block}.attn.", len(x)
        low = self.norm(self.linear(x, f"{prefix}wq_a"), f"{prefix}q_norm.weight")
        queries = self.linear(low, f"{prefix}wq_b").view(rows, config.num_attention_heads, config.head_dim)
        queries = self.rope(queries, positions)
        own = self.key(x, block, positions)
        keys = torch.cat([past, own if self.trap == "draft keys not quantised" else self.fp8(own)])
        logits = torch.einsum("ghd,kd->ghk", queries, keys) * config.head_dim**-0.5
        if self.trap == "causal block":
            later = torch.ones(rows, rows).triu(1).bool()
            logits[:, :, len(past) :] = logits[:, :, len(past) :].masked_fill(later[:, None], -torch.inf)
        sink = self.plain(f"{prefix}attn_sink")[None, :, None].expand(rows, -1, 1)
        shares = torch.cat([logits, sink], -1).softmax(-1)[..., :-1]
        if self.trap == "sink with a value":
            shares = logits.softmax(-1)
        output = self.rope(self.bf16(torch.einsum("ghk,kd->ghd", shares, keys)), positions, -1)
        grouped = self.fp8(output.flatten(1)).view(rows, config.o_groups, -1)
        weight = self.fp8_weight(f"{prefix}wo_a").view(config.o_groups, config.o_lora_rank, -1)
        middle = self.bf16(torch.einsum("goj,ngj->ngo", weight, grouped)).flatten(1)
        return self.linear(middle, f"{prefix}wo_b")

    def expert(self, x: Tensor, name: str, weight: Tensor, read: Callable[[str], Tensor]) -> Tensor:
        limit = self.config.swiglu_limit
        gate = self.bf16(self.fp8(x) @ read(f"{name}.w1").T).clamp(max=limit)
        up = self.bf16(self.fp8(x) @ read(f"{name}.w3").T).clamp(-limit, limit)
        return self.bf16(self.fp8(self.f32(gate * gate.sigmoid() * up * weight)) @ read(f"{name}.w2").T)

    def experts(self, x: Tensor, block: int) -> Tensor:
        config, prefix = self.config, f"mtp.{block}.ffn."
        logits = self.f32(x @ self.plain(f"{prefix}gate.weight").T)
        scores = self.f32(torch.where(logits > 20, logits, logits.clamp(max=20).exp().log1p()).sqrt())
        bias = "bias_vl" if self.trap == "image bias" else "bias"
        count = config.dspark_num_experts_per_tok - (self.trap == "one expert fewer")
        outputs = []
        for row, score in zip(x, scores, strict=True):
            chosen = (score + self.plain(f"{prefix}gate.{bias}")).topk(count).indices
            weights = self.f32(score[chosen] / (score[chosen].sum() + 1e-20) * config.routed_scaling_factor)
            total = torch.zeros_like(row)
            for expert, weight in zip(chosen.tolist(), weights, strict=True):
                total = total + self.expert(row[None], f"{prefix}experts.{expert}", weight, self.fp4_weight)[0]
            if self.trap != "no shared expert":
                one = torch.ones((), dtype=torch.float64)
                total = total + self.expert(row[None], f"{prefix}shared_experts", one, self.fp8_weight)[0]
            outputs.append(self.bf16(total))
        return torch.stack(outputs)

    # A block

    def block(self, keys: Sequence[Tensor], anchor: int, position: int, length: int) -> Tensor:
        """Collapsed rows [G, h] for an anchor at `position`; keys: main keys, of which those before it are used."""
        config = self.config
        shift = {"window one longer": 1, "window one shorter": -1}.get(self.trap, 0)
        begin = max(0, position - config.sliding_window - shift)
        positions = position - (self.trap == "anchor at the position before") + torch.arange(length)
        first = config.dspark_noise_token_id if self.trap == "noise without the anchor" else anchor
        ids = torch.tensor([first] + [config.dspark_noise_token_id] * (length - 1))
        trunk = self.plain("embed.weight")[ids][:, None].repeat(1, config.hc_mult, 1)
        read = torch.eye(config.hc_mult, dtype=torch.float64)[:1].repeat(length, 1)
        for block in range(config.num_draft_layers - (self.trap == "last layer skipped")):
            past = keys[block][begin:position]

            def attend(x: Tensor, block: int = block, past: Tensor = past) -> Tensor:
                return self.attention(x, block, positions, past)

            def feed(x: Tensor, block: int = block) -> Tensor:
                return self.experts(x, block)

            trunk, read = self.sub_layer(trunk, read, f"mtp.{block}.", "attn", attend)
            trunk, read = self.sub_layer(trunk, read, f"mtp.{block}.", "ffn", feed)
        return self.collapsed(trunk, read)

    def heads(
        self, rows: Tensor, anchor: int, drafts: Sequence[int], temperatures: Sequence[float]
    ) -> tuple[Tensor, Tensor]:
        """Logits float32 [G, V] and confidences float32 [G] along a chain of drawn drafts."""
        last = f"mtp.{self.config.num_draft_layers - 1}."
        table, head = self.plain(f"{last}markov_head.embed.weight"), self.plain(f"{last}markov_head.head.weight")
        normed = self.norm(rows, f"{last}norm.weight")
        base = (normed @ self.plain("embed.weight" if self.config.tie_word_embeddings else "head.weight").T).float()
        before = [anchor, *drafts[:-1]]
        biased = [anchor] * len(drafts) if self.trap == "Markov bias of the anchor throughout" else before
        bias = table[biased] @ head.T * (self.trap != "no Markov bias")
        markov = table[list(drafts) if self.trap == "confidence from the drawn token" else before]
        markov = markov * (self.trap != "confidence without Markov row")
        seen = normed if self.trap == "confidence after the norm" else rows
        raw = torch.cat([seen, markov], -1) @ self.plain(f"{last}confidence_head.proj.weight")[0]
        scaled = (raw / torch.tensor(temperatures, dtype=torch.float64)).clamp(-60, 60)
        return (base.double() + bias).float(), scaled.sigmoid().float()
