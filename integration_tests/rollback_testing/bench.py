"""A real model on a real cache, stepped by hand-written plans, with poison in every byte that nobody may read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from rollback_testing.plans import DecodeRow, Ids, Lane, copy_plan, decode_plan, prefill_plan
from rollback_testing.readable import Masks, ReadableBytes
from thalweg.cache import CachePools, MetadataShape
from thalweg.engine import EngineConfig
from thalweg.engine.assembly import cache_geometry
from thalweg.engine.device_maker import compressed_vocabulary
from thalweg.engine.inputs import InputBuilder
from thalweg.engine.model_device import ModelDevice
from thalweg.engine.model_inputs import ModelInputs
from thalweg.engine.sample_stage import SampleStage
from thalweg.engine.upload import Uploader
from thalweg.interfaces import DraftRows, StepPlan
from thalweg.kernels import bind
from thalweg.kernels.backends.cpu import CpuBackend
from thalweg.model import CachedDrafter, DraftNetwork, Model

POISON = 0xFF
"""NaN in every record format."""
BLOCK_TOKENS = 128
Memory = tuple[torch.Tensor, torch.Tensor]
"""uint8 [slot_bytes] and uint8 [blocks of a sequence, block_bytes]"""


@dataclass
class Proposal:
    """Drafts of one sequence: ids int32 [G], confidences float32 [G], and the logits float32 [G, V] behind them."""

    ids: torch.Tensor
    confidences: torch.Tensor
    logits: torch.Tensor

    def equals(self, other: Proposal) -> bool:
        """Bit for bit."""
        mine = (self.ids, self.confidences, self.logits)
        return all(map(torch.equal, mine, (other.ids, other.confidences, other.logits)))


class WatchfulSampler:
    """Takes the likeliest draft, and keeps the logits."""

    def __init__(self) -> None:
        self.logits: list[torch.Tensor] = []

    def sample(self, place: int, logits: torch.Tensor) -> torch.Tensor:
        assert place == len(self.logits)
        self.logits.append(logits.clone())
        return logits.argmax(-1).int()


class Bench:
    """Steps of sequences whose memory is scattered over poisoned pools.

    network: its draft layers keep their keys in the same cache; None = no drafter. draft_length: most drafts that a
    step verifies; ring_drafts: what the rings are made for, the same by default.
    """

    def __init__(
        self,
        model: Model,
        network: DraftNetwork | None,
        draft_length: int,
        *,
        num_lanes: int = 96,
        max_tokens: int = 256,
        ring_drafts: int | None = None,
    ) -> None:
        self.model = model
        self.draft_length = draft_length
        geometry = cache_geometry(model.config, EngineConfig(), draft_length if ring_drafts is None else ring_drafts)
        if network is not None:
            geometry = replace(geometry, num_draft_layers=model.config.num_draft_layers)
        per_lane = -(-max_tokens // BLOCK_TOKENS)
        self.readable = ReadableBytes(geometry, per_lane)
        vocabulary, shape = compressed_vocabulary(model), MetadataShape.of(geometry)
        backend, ops = CpuBackend(), bind("cpu")
        upload = Uploader(backend)
        pools = CachePools(geometry, 1 + num_lanes * per_lane, 1 + num_lanes)
        self.drafter: CachedDrafter | None = None
        if network is not None:
            self.drafter = CachedDrafter(network, pools, draft_length, [1.0] * draft_length)
        inputs = ModelInputs(backend, ops, upload, shape, per_lane + 1, vocabulary, model.config.vocab_size)
        stage = SampleStage(backend, ops, upload, vocab_size=model.config.vocab_size)
        self.device = ModelDevice(model, pools, inputs, stage, self.drafter)
        self._look_back = vocabulary.max_ngram_size
        self._inputs = InputBuilder(shape, vocabulary)
        order = np.random.default_rng(7)
        self._free_slots = (1 + order.permutation(num_lanes)).tolist()
        self._free_blocks = (1 + order.permutation(num_lanes * per_lane)).tolist()
        self._blocks_per_lane = per_lane
        self._holders: Counter[int] = Counter()
        """Sequences that share a block."""
        self.poison_everything()

    def lane(self, text: Ids, start: Memory | None = None, masks: Masks | None = None) -> Lane:
        """Memory for a sequence, all poison but for the masked bytes of `start`."""
        lane = Lane(self._free_slots.pop(), self._take_blocks(self._blocks_per_lane), text)
        assert all(bool((memory == POISON).all()) for memory in self.memory(lane)), "free memory was written to"
        if start is not None and masks is not None:
            self._write(lane, start, masks)
        return lane

    def clear(self, lane: Lane) -> None:
        """Zeros in place of poison: what is read and was never written differs from what a poisoned run reads."""
        self.device.pools.states[lane.slot] = 0
        self.device.pools.blocks[lane.blocks] = 0

    def fork(self, parent: Lane, cached: int, text: Ids) -> Lane:
        """A sequence that goes on from where another one is: full blocks are shared, the rest is copied.

        text: equal to the parent's as far as it is cached.
        """
        shared = parent.blocks[: cached // BLOCK_TOKENS]
        own = self._take_blocks(len(parent.blocks) - len(shared))
        self._holders.update(shared)
        child = Lane(self._free_slots.pop(), shared + own, text)
        copied = [(parent.blocks[len(shared)], own[0])] if cached % BLOCK_TOKENS else []
        self.device.copy(copy_plan([(parent.slot, child.slot)], copied))
        return child

    def free(self, lane: Lane) -> None:
        """Give memory back, poisoned. The next sequence gets it first."""
        self.device.pools.states[lane.slot] = POISON
        self._free_slots.append(lane.slot)
        self._holders.subtract(lane.blocks)
        last = [block for block in lane.blocks if not self._holders[block]]
        self.device.pools.blocks[last] = POISON
        self._free_blocks += last

    def prefill(self, chunks: Sequence[tuple[Lane, int, int]]) -> torch.Tensor:
        """Logits float32 [N, V] of the last row of every chunk (lane, begin, end)."""
        return self._forward(prefill_plan(chunks, self._look_back), None)

    def decode(self, rows: Sequence[DecodeRow]) -> list[torch.Tensor]:
        """Logits float32 [1 + num_verified, V] of every row."""
        plan = decode_plan(rows, self._look_back, self.draft_length)
        left = None
        if (plan.previous_rows >= 0).any():
            left = SimpleNamespace(for_next_step=_left_by_the_step_before(rows))
        return list(torch.split(self._forward(plan, left), plan.query_lengths.tolist()))

    def propose(self, points: Sequence[tuple[Lane, int]]) -> list[Proposal]:
        """What the drafter says of every sequence (lane, cached tokens), whose newest token is text[cached]."""
        assert self.drafter is not None
        rows = DraftRows(
            np.arange(len(points)),
            torch.tensor([int(lane.text[cached]) for lane, cached in points], dtype=torch.int32),
            torch.tensor([cached for _, cached in points], dtype=torch.int32),
            torch.tensor([lane.slot for lane, _ in points], dtype=torch.int32),
        )
        sampler = WatchfulSampler()
        with torch.inference_mode():
            ids, confidences = self.drafter.propose(rows, sampler)
        logits = torch.stack(sampler.logits, 1)
        return [Proposal(*parts) for parts in zip(ids, confidences, logits, strict=True)]

    def memory(self, lane: Lane) -> Memory:
        """A copy of the sequence's bytes."""
        return self.device.pools.states[lane.slot].clone(), self.device.pools.blocks[lane.blocks].clone()

    def poison_unreadable(self, lane: Lane, masks: Masks) -> None:
        """Overwrite what the masks leave out."""
        self._write(lane, self.memory(lane), masks)

    def poison_everything(self) -> None:
        self.device.pools.states.fill_(POISON)
        self.device.pools.blocks.fill_(POISON)

    def _take_blocks(self, count: int) -> list[int]:
        blocks = [self._free_blocks.pop() for _ in range(count)]
        self._holders.update(blocks)
        return blocks

    def _write(self, lane: Lane, memory: Memory, masks: Masks) -> None:
        states, blocks = (
            torch.where(mask, values, torch.tensor(POISON, dtype=torch.uint8))
            for values, mask in zip(memory, masks, strict=True)
        )
        self.device.pools.states[lane.slot] = states
        self.device.pools.blocks[lane.blocks] = blocks

    def _forward(self, plan: StepPlan, left: Any) -> torch.Tensor:
        with torch.inference_mode():
            prepared = self.device.prepare(self._inputs.build(plan), left, redistribute=False)
            return self.device.forward(prepared).logits


def _left_by_the_step_before(rows: Sequence[DecodeRow]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(token_ids [N], draft_ids [N, G], num_accepted [N]); what belongs to rows not in flight is never looked at."""
    tokens = [int(row.lane.text[row.cached]) for row in rows]
    accepted = [0 if row.in_flight is None else row.cached - row.in_flight.cached - 1 for row in rows]
    drafts = np.stack([row.drafts for row in rows])
    return (
        torch.tensor(tokens, dtype=torch.int32),
        torch.from_numpy(drafts),
        torch.tensor(accepted, dtype=torch.int32),
    )
