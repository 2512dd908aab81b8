"""A small mixture of experts over the ranks: tokens travel to copies of experts, results come home and are added there.

Results are added in the order of the gate's choice, at the token's rank, in float32: which rank computed them, and in
which company, changes no bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from thalweg.eplb.copies import choose_copies, follow_split
from thalweg.eplb.executors import LiveTables
from thalweg.eplb.placement import Placement

if TYPE_CHECKING:
    from thalweg.eplb import TokenSplit

HIDDEN, INNER, TOP_K = 16, 24, 3


def expert_tensors(layer: int, expert: int) -> list[torch.Tensor]:
    """Gate and up, [2 * inner, hidden] bfloat16, and down, [hidden, inner] float32: two formats, as quantised ones."""
    generator = torch.Generator().manual_seed(1000 * layer + expert)
    up = torch.randn(2 * INNER, HIDDEN, generator=generator).to(torch.bfloat16)
    return [up, torch.randn(HIDDEN, INNER, generator=generator)]


def layer_weights(placement: Placement, layer: int, rank: int) -> list[torch.Tensor]:
    """[slots of this rank, ...] each."""
    first = rank * placement.slots_per_rank
    own = placement.logical_of_physical[layer, first : first + placement.slots_per_rank].tolist()
    return [torch.stack(tensors) for tensors in zip(*(expert_tensors(layer, e) for e in own), strict=True)]


class SmallMoe:
    """Layers of experts with a residual stream; `weights` and `tables` may change between two calls."""

    def __init__(self, weights: Sequence[Sequence[torch.Tensor]], num_experts: int, rank: int, size: int) -> None:
        generator = torch.Generator().manual_seed(7)
        self._gates = [torch.randn(num_experts, HIDDEN, generator=generator) for _ in weights]
        self._weights = weights
        self._rank, self._size = rank, size

    def run(self, x: torch.Tensor, tables: LiveTables, split: TokenSplit | None = None) -> torch.Tensor:
        """[tokens, hidden] bfloat16 to the same; a collective. split: of each step's tokens, else they go in turn."""
        for layer in range(len(self._weights)):
            x = (x.float() + self._experts(layer, x, tables, split).float()).div(2).to(torch.bfloat16)
        return x

    def _experts(self, layer: int, x: torch.Tensor, tables: LiveTables, split: TokenSplit | None) -> torch.Tensor:
        scores = torch.stack([self._gates[layer] @ row.float() for row in x])
        weight, chosen = scores.softmax(-1).topk(TOP_K)
        slots_of_logical = tables.physical_of_logical[layer].numpy()
        if split is None:
            slots = choose_copies(chosen.numpy(), slots_of_logical, tables.num_copies[layer].numpy(), self._rank)
        else:
            counts = self._counts_of_ranks(layer, chosen)
            tokens_of_slot = split.split_layer(layer, counts.sum(axis=0))
            before = counts[: self._rank].sum(axis=0)
            slots = follow_split(chosen.numpy(), slots_of_logical, tokens_of_slot, before)
        flat = torch.from_numpy(slots).reshape(-1)
        slots_per_rank = len(self._weights[layer][0])
        order = torch.argsort(flat, stable=True)
        sent = torch.bincount(flat // slots_per_rank, minlength=self._size).tolist()
        received = self._exchange(torch.tensor(sent), [1] * self._size, [1] * self._size).tolist()
        rows = self._exchange(x.float().repeat_interleave(TOP_K, 0)[order], sent, received)
        local = self._exchange(flat[order], sent, received) % slots_per_rank
        results = torch.empty_like(rows)
        for row, slot in enumerate(local.tolist()):  # one by one: no row's bits depend on its neighbours
            results[row] = self._expert(layer, slot, rows[row])
        home = torch.empty(len(flat), HIDDEN)
        home[order] = self._exchange(results, received, sent)
        output = torch.zeros(len(x), HIDDEN)
        for choice in range(TOP_K):
            output += weight[:, choice, None] * home.view(len(x), TOP_K, HIDDEN)[:, choice]
        return output.to(torch.bfloat16)

    def _counts_of_ranks(self, layer: int, chosen: torch.Tensor) -> NDArray[np.int64]:
        """[ranks, experts]"""
        own = torch.bincount(chosen.reshape(-1), minlength=len(self._gates[layer]))
        counts = [torch.empty_like(own) for _ in range(self._size)]
        dist.all_gather(counts, own)
        return torch.stack(counts).numpy()

    def _expert(self, layer: int, slot: int, row: torch.Tensor) -> torch.Tensor:
        up, down = self._weights[layer]
        gate, value = (up[slot].float() @ row).chunk(2)
        return down[slot] @ (torch.nn.functional.silu(gate) * value)

    @staticmethod
    def _exchange(rows: torch.Tensor, sent: list[int], received: list[int]) -> torch.Tensor:
        output = torch.empty(sum(received), *rows.shape[1:], dtype=rows.dtype)
        dist.all_to_all_single(output, rows.contiguous(), received, sent)
        return output


def random_placement(seed: int, num_layers: int, num_experts: int, num_slots: int, num_ranks: int) -> Placement:
    """Every expert, and random copies."""
    rng = np.random.default_rng(seed)
    copies = [rng.integers(0, num_experts, num_slots - num_experts) for _ in range(num_layers)]
    rows = [rng.permutation(np.concatenate([np.arange(num_experts), extra])) for extra in copies]
    return Placement.from_slots(np.array(rows, np.int32), num_ranks, num_experts)


def fits(weights: Sequence[Sequence[torch.Tensor]], tables: LiveTables, rank: int) -> bool:
    """Whether every slot holds, bit for bit, the expert that the tables say."""
    for layer, tensors in enumerate(weights):
        first = rank * len(tensors[0])
        own = tables.logical_of_physical[layer, first : first + len(tensors[0])].tolist()
        wanted = [torch.stack(kind) for kind in zip(*(expert_tensors(layer, e) for e in own), strict=True)]
        if not all(torch.equal(held.cpu(), good) for held, good in zip(tensors, wanted, strict=True)):
            return False
    return True
