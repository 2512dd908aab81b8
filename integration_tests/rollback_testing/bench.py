"""A real model on a real cache, stepped by hand-written plans, with poison in every byte that nobody may read."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from rollback_testing.plans import DecodeRow, Ids, Lane, copy_plan, decode_plan, prefill_plan
from rollback_testing.readable import Masks, ReadableBytes
from thalweg.cache import MetadataShape, compute_layout
from thalweg.engine import EngineConfig
from thalweg.engine.assembly import build_device, cache_geometry, compressed_vocabulary
from thalweg.engine.inputs import InputBuilder
from thalweg.engine.pool_sizes import PoolSizes
from thalweg.interfaces import StepPlan
from thalweg.kernels import bind
from thalweg.kernels.backends.cpu import CpuBackend
from thalweg.model import Model

POISON = 0xFF
"""NaN in every record format."""
Memory = tuple[torch.Tensor, torch.Tensor]
"""uint8 [slot_bytes] and uint8 [blocks of a sequence, block_bytes]"""


class Bench:
    """Steps of sequences whose memory is scattered over poisoned pools.

    draft_length: most drafts that a step verifies; ring_drafts: what the rings are made for, the same by default.
    """

    def __init__(
        self,
        model: Model,
        draft_length: int,
        *,
        num_lanes: int = 96,
        max_tokens: int = 256,
        ring_drafts: int | None = None,
    ) -> None:
        self.model = model
        self.draft_length = draft_length
        geometry = cache_geometry(model.config, EngineConfig(), draft_length if ring_drafts is None else ring_drafts)
        per_lane = -(-max_tokens // geometry.tokens_per_block)
        sizes = PoolSizes(1 + num_lanes * per_lane, 1 + num_lanes, per_lane + 1)
        self.layout = compute_layout(geometry)
        self.readable = ReadableBytes(geometry, per_lane)
        self.device = build_device(CpuBackend(), bind("cpu"), model, geometry, sizes, None)
        vocabulary = compressed_vocabulary(model)
        self._look_back = vocabulary.max_ngram_size
        self._inputs = InputBuilder(MetadataShape.of(geometry), vocabulary)
        order = np.random.default_rng(7)
        slots = 1 + order.permutation(num_lanes)
        blocks = 1 + order.permutation(num_lanes * per_lane).reshape(num_lanes, per_lane)
        self._free = [(int(slot), table.tolist()) for slot, table in zip(slots, blocks, strict=True)]
        self.poison_everything()

    def lane(self, text: Ids, start: Memory | None = None, masks: Masks | None = None) -> Lane:
        """Memory for a sequence, all poison but for the masked bytes of `start`."""
        slot, blocks = self._free.pop()
        lane = Lane(slot, blocks, text)
        if start is not None and masks is not None:
            self._write(lane, start, masks)
        return lane

    def free(self, lanes: Sequence[Lane]) -> None:
        """Give memory back, poisoned."""
        for lane in lanes:
            self.device.pools.states[lane.slot] = POISON
            self.device.pools.blocks[lane.blocks] = POISON
            self._free.append((lane.slot, lane.blocks))

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

    def copy(self, state_copies: Sequence[tuple[int, int]], block_copies: Sequence[tuple[int, int]]) -> None:
        """Copy slots and blocks (source, destination) as a plan would have it."""
        self.device.copy(copy_plan(state_copies, block_copies))

    def memory(self, lane: Lane) -> Memory:
        """A copy of the sequence's bytes."""
        return self.device.pools.states[lane.slot].clone(), self.device.pools.blocks[lane.blocks].clone()

    def poison_unreadable(self, lane: Lane, masks: Masks) -> None:
        """Overwrite what the masks leave out."""
        self._write(lane, self.memory(lane), masks)

    def poison_everything(self) -> None:
        self.device.pools.states.fill_(POISON)
        self.device.pools.blocks.fill_(POISON)

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
