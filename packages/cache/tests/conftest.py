"""Simulations that the tests run briefly and the soak runs at length."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch

from thalweg.cache import (
    CacheGeometry,
    CachePools,
    MetadataShape,
    build_decode_metadata,
    build_prefill_metadata,
    copy_blocks,
    copy_states,
    expand_window,
    flat_slots,
    window_reads,
)
from thalweg.kernels import RecordFormat
from thalweg.kernels.reference import cache, metadata
from thalweg.kernels.reference.compressor import pool_decode, pool_groups, pool_prefill

sys.path.insert(0, str(Path(__file__).parent))

from cache_testing.geometries import TINY

WINDOW = 128
DRAFTS = 5


def run_window_ring(ring_length: int, steps: int, seed: int) -> int:
    """Decode with random verify lengths and random accepted counts; the number of window reads that went wrong.

    A ring row holds the number of the write that filled it. A step writes all its rows, then every query must find the
    newest write of each position it sees.
    """
    random = np.random.default_rng(seed)
    ring = np.full(3 * ring_length, -1)
    slot, first, writes, errors = 1, 0, 0, 0
    newest = np.full(steps * (DRAFTS + 1) + DRAFTS + 2, -1)
    for _ in range(steps):
        positions = first + np.arange(random.choice([1, DRAFTS + 1, random.integers(1, DRAFTS + 2)]))
        newest[positions] = writes + np.arange(positions.size)
        writes += positions.size
        ring[flat_slots(slot, positions, ring_length)] = newest[positions]
        reads = window_reads(np.full(positions.size, slot), positions, WINDOW, ring_length)
        slots = expand_window(reads, WINDOW, ring_length)
        for position, row in zip(positions, slots, strict=True):
            seen = ring[row[row >= 0]]
            errors += int((seen != newest[position + 1 - seen.size : position + 1]).any())
        first += int(random.integers(1, positions.size + 1))
    assert (ring[:ring_length] == -1).all()
    assert (ring[2 * ring_length :] == -1).all()
    return errors


def run_compressor_ring(ring_length: int, steps: int, seed: int) -> int:
    """Decode with random accepted counts over a compressor ring; the number of entries that were pooled wrongly."""
    random = np.random.default_rng(seed)
    generator = torch.Generator().manual_seed(seed)
    ring = torch.full((3, ring_length, 2, 4), torch.nan)
    newest = torch.full((steps * (DRAFTS + 1) + DRAFTS + 2, 2, 4), torch.nan)
    first, errors = 0, 0
    for _ in range(steps):
        count = int(random.choice([1, DRAFTS + 1, random.integers(1, DRAFTS + 2)]))
        rows = torch.randn(count, 2, 4, generator=generator)
        newest[first : first + count] = rows
        contexts = torch.arange(first + 1, first + count + 1)
        pooled = pool_decode(rows[:, 0], rows[:, 1], ring, torch.ones(count, dtype=torch.int32), contexts, 2)
        for row, context in zip(pooled, contexts.tolist(), strict=True):
            if context % 2 == 0:
                group = newest[context - 2 : context]
                errors += int(not torch.equal(row, pool_groups(group[:, 0], group[:, 1])))
            else:
                errors += int(row.any())
        first += int(random.integers(1, count + 1))
    return errors


@dataclass
class Life:
    """A sequence of the simulation and what the cache must hold for it."""

    slot: int
    blocks: list[int]
    length: int = 0
    """Committed tokens."""
    window: list[torch.Tensor] = field(default_factory=list)
    pairs: list[torch.Tensor] = field(default_factory=list)
    """[2, D] score and latent of every position."""
    entries: dict[int, list[torch.Tensor]] = field(default_factory=lambda: {1: [], 2: []})

    def cut(self, length: int) -> None:
        """Forget rejected tokens."""
        self.length = length
        del self.window[length:], self.pairs[length:]
        for ratio, rows in self.entries.items():
            del rows[length // ratio :]


class PoolSimulation:
    """Sequences that are prefilled, decoded with rejected drafts, forked and freed over poisoned pools.

    Every read of the cache is compared with what was written for that sequence; an unwritten or foreign byte shows as a
    difference, because freed memory reads as NaN.
    """

    MAIN: ClassVar[dict[int, int]] = {1: 4, 2: 2}
    """A source layer of each ratio."""

    def __init__(self, geometry: CacheGeometry, seed: int) -> None:
        self.geometry = geometry
        self.shape = MetadataShape.of(geometry)
        self.pools = CachePools(geometry, 60, 8, poison_freed=True)
        self.pools.freed(range(60), range(8))
        self.random = np.random.default_rng(seed)
        self.generator = torch.Generator().manual_seed(seed)
        self.free_blocks = list(range(1, 60))
        self.free_slots = list(range(1, 8))
        self.holders: Counter[int] = Counter()
        self.lives: list[Life] = []

    def step(self) -> None:
        """One random event."""
        draw = self.random.random()
        if draw < 0.25 and self.free_slots:
            self.lives.append(Life(self._take_slot(), []))
        if draw < 0.4:
            self._prefill()
        elif draw < 0.8:
            self._decode()
        elif draw < 0.9:
            self._fork()
        else:
            self._finish()

    def _take_slot(self) -> int:
        return self.free_slots.pop(self.random.integers(len(self.free_slots)))

    def _reserve(self, life: Life, length: int) -> bool:
        while len(life.blocks) * self.geometry.tokens_per_block < length:
            if not self.free_blocks:
                return False
            block = self.free_blocks.pop(self.random.integers(len(self.free_blocks)))
            self.holders[block] = 1
            life.blocks.append(block)
        return True

    def _rows(self, count: int, record_format: RecordFormat, width: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Random rows, and the same as they come back from the cache."""
        rows = torch.randn(count, width, generator=self.generator).double()
        scratch = torch.zeros(1, max(count, 1), 1, record_format.record_bytes(width), dtype=torch.uint8)
        cache.store_records(scratch, torch.arange(count), rows, record_format)
        return rows, cache.gather_records(scratch, torch.arange(count), record_format, torch.float64)

    def _batch(self, longest: int) -> tuple[list[Life], list[int]]:
        lives, counts = [], []
        for life in self.lives:
            count = int(self.random.integers(1, longest + 1))
            if self.random.random() < 0.7 and life.length + count <= 150 and self._reserve(life, life.length + count):
                lives.append(life)
                counts.append(count)
        return lives, counts

    def _plan(
        self, lives: list[Life], counts: list[int]
    ) -> tuple[list[int], list[int], list[int], list[int], list[int]]:
        tables = [life.blocks for life in lives]
        return (
            counts,
            [life.length + count for life, count in zip(lives, counts, strict=True)],
            [life.slot for life in lives],
            [sum(len(table) for table in tables[:row]) for row in range(len(tables) + 1)],
            [block for table in tables for block in table],
        )

    def _append_rows(self, lives: list[Life], counts: list[int], kept: torch.Tensor, pairs: torch.Tensor) -> None:
        row = 0
        for life, count in zip(lives, counts, strict=True):
            life.window += list(kept[row : row + count])
            life.pairs += list(pairs[row : row + count])
            row += count

    def _store_entries(self, ratio: int, slots: torch.Tensor, owners: list[Life]) -> None:
        """Write random entries and index keys; `owners` names the sequence of every slot that is not -1."""
        layer = self.MAIN[ratio]
        rows, kept = self._rows(slots.numel(), self.pools.main_format, self.geometry.head_dim)
        keys = rows[:, : self.geometry.index_head_dim]
        cache.store_records(self.pools.main(layer), slots, rows, self.pools.main_format)
        cache.store_records(self.pools.index_keys(layer), slots, keys, self.pools.index_format)
        for row, life in zip(kept[slots >= 0], owners, strict=True):
            life.entries[ratio].append(row)

    def _prefill(self) -> None:
        lives, counts = self._batch(40)
        if not lives:
            return
        plan = build_prefill_metadata(self.shape, *self._plan(lives, counts))
        size, window = self.geometry.window_size, self.pools.window(0)
        rows, kept = self._rows(sum(counts), self.pools.window_format, self.geometry.head_dim)
        segments = torch.from_numpy(plan.window_segments)
        history = cache.load_records(window, segments, size * len(lives), self.pools.window_format, torch.float64)
        keys = torch.cat((history, kept))
        indices = metadata.expand_window_pivots(torch.from_numpy(plan.window_pivots), size)
        cache.store_records(window, torch.from_numpy(plan.window_store_slots), rows, self.pools.window_format)

        pairs = torch.randn(sum(counts), 2, self.geometry.head_dim, generator=self.generator).double()
        pooled = pool_prefill(
            pairs[:, 0],
            pairs[:, 1],
            self.pools.compressor(2),
            torch.from_numpy(plan.state_slots),
            torch.from_numpy(plan.query_offsets),
            torch.tensor([life.length for life in lives]),
            torch.from_numpy(plan.compressed_offsets[2]),
            2,
        )
        self._append_rows(lives, counts, kept, pairs)
        for row, (life, position) in enumerate(self._queries(lives, counts)):
            first = max(0, position - size + 1)
            self._expect(keys[indices[row][indices[row] >= 0].long()], life.window[first : position + 1])
        for order, life in enumerate(lives):
            begin = int(plan.compressed_offsets[2][order])
            new = range(life.length // 2, (life.length + counts[order]) // 2)
            for row, entry in enumerate(new):
                self._expect_pooled(pooled[begin + row], life, entry)
        for ratio in (1, 2):
            slots = torch.from_numpy(plan.compressed_store_slots[ratio])
            owners = [
                life
                for life, count in zip(lives, counts, strict=True)
                for _ in range((life.length + count) // ratio - life.length // ratio)
            ]
            self._store_entries(ratio, slots, owners)
            loaded = cache.load_records(
                self.pools.main(self.MAIN[ratio]),
                torch.from_numpy(plan.compressed_segments[ratio]),
                plan.num_compressed_rows[ratio],
                self.pools.main_format,
                torch.float64,
            )
            for row, (life, position) in enumerate(self._queries(lives, counts)):
                got = loaded[plan.entry_begin[ratio][row] : plan.entry_end[ratio][row]]
                self._expect(got, life.entries[ratio][: (position + 1) // ratio])
        for life, count in zip(lives, counts, strict=True):
            life.length += count

    def _decode(self) -> None:
        lives, counts = self._batch(self.geometry.draft_length + 1)
        if not lives:
            return
        plan = build_decode_metadata(self.shape, *self._plan(lives, counts), 16)
        queries = self._queries(lives, counts)
        window = self.pools.window(0)
        rows, kept = self._rows(sum(counts), self.pools.window_format, self.geometry.head_dim)
        cache.store_records(window, torch.from_numpy(plan.window_store_slots), rows, self.pools.window_format)
        slots = metadata.expand_window_reads(
            torch.from_numpy(plan.window_reads), self.geometry.window_size, self.geometry.ring_length
        )
        seen = cache.gather_records(window, slots, self.pools.window_format, torch.float64)
        pairs = torch.randn(sum(counts), 2, self.geometry.head_dim, generator=self.generator).double()
        pooled = pool_decode(
            pairs[:, 0],
            pairs[:, 1],
            self.pools.compressor(2),
            torch.from_numpy(plan.state_slots),
            torch.from_numpy(plan.context_lengths),
            2,
        )
        self._append_rows(lives, counts, kept, pairs)
        for row, (life, position) in enumerate(queries):
            first = max(0, position - self.geometry.window_size + 1)
            self._expect(seen[row, : position - first + 1], life.window[first : position + 1])
            if position % 2:
                self._expect_pooled(pooled[row], life, position // 2)
        for ratio in (1, 2):
            slots = torch.from_numpy(plan.compressed_store_slots[ratio])
            owners = [life for life, position in queries if (position + 1) % ratio == 0]
            self._store_entries(ratio, slots, owners)
            for row, (life, position) in enumerate(queries):
                visible = int(plan.visible_entries[ratio][row])
                assert visible == (position + 1) // ratio
                chosen = np.sort(self.random.permutation(visible)[:8])
                topk = torch.from_numpy(np.pad(chosen, (0, 8 - chosen.size), constant_values=-1))[None]
                table = torch.from_numpy(plan.block_tables[row : row + 1])
                entries = self.geometry.tokens_per_block // ratio
                flat = metadata.topk_to_slots(topk, torch.tensor([visible]), table, entries)
                main = self.pools.main(self.MAIN[ratio])
                got = cache.gather_records(main, flat[0], self.pools.main_format, torch.float64)
                self._expect(got[: chosen.size], [life.entries[ratio][entry] for entry in chosen])
                assert not got[chosen.size :].any()
        for life, count in zip(lives, counts, strict=True):
            life.cut(life.length + int(self.random.integers(1, count + 1)))

    def _fork(self) -> None:
        if not self.lives or not self.free_slots or not self.free_blocks:
            return
        parent = self.lives[self.random.integers(len(self.lives))]
        full, rest = divmod(parent.length, self.geometry.tokens_per_block)
        child = Life(self._take_slot(), parent.blocks[:full], parent.length, list(parent.window), list(parent.pairs))
        child.entries = {ratio: list(rows) for ratio, rows in parent.entries.items()}
        self.holders.update(child.blocks)
        if rest:
            self._reserve(child, parent.length)
            copy_blocks(self.pools.blocks, [(parent.blocks[full], child.blocks[full]), (parent.blocks[full], 0)])
        copy_states(self.pools.states, [(parent.slot, child.slot)])
        self.lives.append(child)

    def _finish(self) -> None:
        if not self.lives:
            return
        life = self.lives.pop(self.random.integers(len(self.lives)))
        self.holders.subtract(life.blocks)
        freed = [block for block in life.blocks if self.holders[block] == 0]
        self.pools.freed(freed, [life.slot])
        self.free_blocks += freed
        self.free_slots.append(life.slot)

    @staticmethod
    def _queries(lives: list[Life], counts: list[int]) -> list[tuple[Life, int]]:
        return [
            (life, position)
            for life, count in zip(lives, counts, strict=True)
            for position in range(life.length, life.length + count)
        ]

    @staticmethod
    def _expect(got: torch.Tensor, want: list[torch.Tensor]) -> None:
        assert torch.equal(got, torch.stack(want) if want else got[:0])

    def _expect_pooled(self, got: torch.Tensor, life: Life, entry: int) -> None:
        group = torch.stack(life.pairs[2 * entry : 2 * entry + 2])
        assert torch.equal(got, pool_groups(group[:, 0], group[:, 1]))


@pytest.fixture
def window_ring() -> Callable[[int, int, int], int]:
    return run_window_ring


@pytest.fixture
def compressor_ring() -> Callable[[int, int, int], int]:
    return run_compressor_ring


@pytest.fixture
def tiny_geometry() -> CacheGeometry:
    return TINY


@pytest.fixture
def pool_simulation() -> type[PoolSimulation]:
    return PoolSimulation
