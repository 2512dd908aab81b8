"""A small paged cache in plain tensors, and steps over it, for tests of the forward pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from thalweg.interfaces import DraftRows, DraftSampler, TargetRows
from thalweg.kernels import RecordFormat
from thalweg.model import (
    CachedDrafter,
    DecodeMetadata,
    ForwardBatch,
    Model,
    NativeModel,
    PrefillMetadata,
    TargetFeatures,
    Trace,
)

BLOCK_TOKENS = 8
BACKTRACKING = 6


class Views:
    """One tensor per layer and kind, filled with NaN bytes so that reading an unwritten record shows."""

    def __init__(
        self, model: Model | NativeModel, num_blocks: int, num_slots: int, block_tokens: int = BLOCK_TOKENS
    ) -> None:
        config, quant = model.config, model.numerics.is_quant
        main = RecordFormat.FP4_MAIN if config.use_fp4_sparse_kv else RecordFormat.MXFP8
        self.window_format = RecordFormat.MXFP8 if quant else RecordFormat.FLOAT64
        self.main_format = main if quant else RecordFormat.FLOAT64
        self.index_format = RecordFormat.MXFP4_INDEX if quant else RecordFormat.FLOAT64
        self.layout = SimpleNamespace(ring_length=config.sliding_window + BACKTRACKING)
        device = model.device if isinstance(model, NativeModel) else torch.device("cpu")
        self._window, self._main, self._index, self._compressor = {}, {}, {}, {}
        for layer in range(config.num_hidden_layers + config.num_draft_layers):
            self._window[layer] = _records(num_slots, self.layout.ring_length, self.window_format, config.head_dim)
        for kind in config.topology.layers:
            if kind.is_index_key_source:
                entries = block_tokens // kind.ratio
                self._index[kind.layer] = _records(num_blocks, entries, self.index_format, config.index_head_dim)
            if kind.is_kv_source:
                entries = block_tokens // kind.ratio
                self._main[kind.layer] = _records(num_blocks, entries, self.main_format, config.head_dim)
                if kind.ratio > 1:
                    shape = (num_slots, kind.ratio + BACKTRACKING - 1, 2, config.head_dim)
                    dtype = torch.float32 if quant else torch.float64
                    self._compressor[kind.layer] = torch.full(shape, torch.nan, dtype=dtype)

        for views in (self._window, self._main, self._index, self._compressor):
            views |= {layer: view.to(device) for layer, view in views.items()}

    def window(self, layer: int) -> torch.Tensor:
        return self._window[layer]

    def main(self, layer: int) -> torch.Tensor:
        return self._main[layer]

    def index_keys(self, layer: int) -> torch.Tensor:
        return self._index[layer]

    def compressor(self, layer: int) -> torch.Tensor:
        return self._compressor[layer]


def _records(pages: int, entries: int, record_format: RecordFormat, width: int) -> torch.Tensor:
    return torch.full((pages, entries, 1, record_format.record_bytes(width)), 0xFF, dtype=torch.uint8)


@dataclass
class Running:
    """One sequence in the cache."""

    tokens: torch.Tensor
    slot: int
    table: list[int]
    done: int = 0
    logits: dict[int, torch.Tensor] = field(default_factory=dict)


class PagedCache:
    """Runs prefill and decode steps of several sequences and keeps the logits of every position.

    A drafter, where one is set, sees every step.
    """

    def __init__(
        self,
        model: Model | NativeModel,
        num_blocks: int = 64,
        num_slots: int = 8,
        seed: int | None = None,
        *,
        block_tokens: int = BLOCK_TOKENS,
    ) -> None:
        """seed: shuffles which blocks and slots are handed out."""
        self.model = model
        self.views = Views(model, num_blocks, num_slots, block_tokens)
        self._block_tokens = block_tokens
        self.drafter: CachedDrafter | None = None
        order = np.random.default_rng(seed)
        self._device = model.device if isinstance(model, NativeModel) else torch.device("cpu")
        self._blocks = list(range(1, num_blocks)) if seed is None else list(1 + order.permutation(num_blocks - 1))
        self._slots = list(range(1, num_slots)) if seed is None else list(1 + order.permutation(num_slots - 1))
        self.ratios = sorted({ratio for ratio in model.config.compress_ratios if ratio})

    def add(self, tokens: torch.Tensor) -> Running:
        needed = -(-len(tokens) // self._block_tokens)
        table = [int(self._blocks.pop(0)) for _ in range(needed)]
        return Running(tokens, int(self._slots.pop(0)), table)

    def prefill(
        self, chunks: Sequence[tuple[Running, int]], trace: Trace | None = None, **images: torch.Tensor
    ) -> None:
        """images: image_mask and image_embeddings of the batch."""
        batch, metadata = self.prefill_inputs(chunks)
        self._run(chunks, replace(batch, **images), metadata, trace)

    def decode(self, chunks: Sequence[tuple[Running, int]], placeholders: int = 0, trace: Trace | None = None) -> None:
        self._run(chunks, *self.decode_inputs(chunks, placeholders), trace)

    def prefill_inputs(self, chunks: Sequence[tuple[Running, int]]) -> tuple[ForwardBatch, PrefillMetadata]:
        """What a prefill step takes, on the model's device."""
        return self._moved(self._batch(chunks)), self._moved(self._prefill_metadata(chunks))

    def decode_inputs(
        self, chunks: Sequence[tuple[Running, int]], placeholders: int = 0
    ) -> tuple[ForwardBatch, DecodeMetadata]:
        """What a decode step takes, on the model's device."""
        batch = self._moved(self._batch(chunks, placeholders))
        return batch, self._moved(self._decode_metadata(chunks, placeholders))

    def values(self, running: Running) -> dict[str, torch.Tensor]:
        """Everything that later steps can read of a sequence, de-quantised."""
        views, ops, done = self.views, self.model.numerics.ops, running.done
        ring, window = views.layout.ring_length, self.model.config.sliding_window
        found = {}
        for kind in self.model.config.topology.layers:
            slots = torch.tensor([running.slot * ring + p % ring for p in range(max(0, done - window), done)])
            found[f"window {kind.layer}"] = ops.gather_records(views.window(kind.layer), slots, views.window_format)
            if kind.is_kv_source:
                slots = torch.tensor(
                    self._entry_slots(running, kind.ratio, range(done // kind.ratio)), dtype=torch.int64
                )
                found[f"main {kind.layer}"] = ops.gather_records(views.main(kind.layer), slots, views.main_format)
                found[f"index {kind.layer}"] = ops.gather_records(
                    views.index_keys(kind.layer), slots, views.index_format
                )
                if kind.ratio > 1 and done % kind.ratio:
                    state = views.compressor(kind.layer)[running.slot]
                    found[f"open group {kind.layer}"] = state[(done - 1) % state.shape[0]]
        return found

    def propose(
        self, group: Sequence[Running], anchors: Sequence[int], sampler: DraftSampler
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Draft ids and confidences after anchors that are in no cache yet."""
        rows = DraftRows(
            sequence_ids=np.arange(len(group)),
            anchor_token_ids=_int(anchors),
            positions=_int([running.done for running in group]),
            state_slots=_int([running.slot for running in group]),
        )
        return self.drafter.propose(rows, sampler)

    def _run(
        self,
        chunks: Sequence[tuple[Running, int]],
        batch: ForwardBatch,
        metadata: PrefillMetadata | DecodeMetadata,
        trace: Trace | None,
    ) -> None:
        memory = self.model.paged_memory(self.views, metadata, batch.positions)
        features = None if self.drafter is None else TargetFeatures(self.drafter.target_layer_ids)
        logits = self.model.logits(self.model.forward(batch, memory, trace, features))
        if features is not None:
            self.drafter.observe(TargetRows(features.joined(), batch.positions, metadata.window_store_slots))
        row, logits = 0, logits.cpu()
        for running, count in chunks:
            for position in range(running.done, running.done + count):
                running.logits[position] = logits[row]
                row += 1
            running.done += count

    def _moved(self, inputs: Any) -> Any:
        """A batch or metadata on the model's device."""

        def moved(value: Any) -> Any:
            if isinstance(value, dict):
                return {key: moved(item) for key, item in value.items()}
            return value.to(self._device) if isinstance(value, torch.Tensor) else value

        return replace(inputs, **{item.name: moved(getattr(inputs, item.name)) for item in fields(inputs)})

    def _batch(self, chunks: Sequence[tuple[Running, int]], placeholders: int = 0) -> ForwardBatch:
        tokens, positions, ngrams = [], [], []
        for running, count in chunks:
            begin, end = running.done, running.done + count
            tokens.append(running.tokens[begin:end])
            positions.append(torch.arange(begin, end))
            ngrams.append(self._ngrams(running.tokens[:begin], running.tokens[begin:end]))
        valid = torch.ones(sum(count for _, count in chunks) + placeholders, dtype=torch.bool)
        if placeholders:
            tokens.append(torch.zeros(placeholders, dtype=torch.int64))
            positions.append(torch.zeros(placeholders, dtype=torch.int64))
            ngrams.append(ngrams[0].new_zeros(placeholders, ngrams[0].shape[1]))
            valid[-placeholders:] = False
        where = torch.cat(positions)
        mask = valid if placeholders else None
        return ForwardBatch(torch.cat(tokens), where, torch.cat(ngrams), valid_mask=mask)

    def _ngrams(self, previous: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        if self.model.vocabulary is None:
            return torch.zeros(len(tokens), 0, dtype=torch.int64)
        size = self.model.config.engram_max_ngram_size
        return torch.from_numpy(self.model.vocabulary.ngram_ids(tokens.numpy(), size, previous=previous.numpy()))

    def _entry_slots(self, running: Running, ratio: int, entries: Sequence[int]) -> list[int]:
        per_block = self._block_tokens // ratio
        return [running.table[c // per_block] * per_block + c % per_block for c in entries]

    def _prefill_metadata(self, chunks: Sequence[tuple[Running, int]]) -> PrefillMetadata:
        window, ring = self.model.config.sliding_window, self.views.layout.ring_length
        num_sequences = len(chunks)
        segments, pivots, stores, offsets = [], [], [], [0]
        for index, (running, count) in enumerate(chunks):
            begin = running.done
            for column, position in enumerate(range(begin - window, begin)):
                source = (running.slot, position % ring) if position >= 0 else (-1, 0)
                segments.append((source[0], source[1], source[1] + 1, index * window + column))
            for j, position in enumerate(range(begin, begin + count)):
                oldest = max(0, position - window + 1)
                history = max(0, begin - oldest)
                first_new = window * num_sequences + offsets[-1] + max(oldest, begin) - begin
                pivots.append(
                    (index * window + window - history, history, first_new, j + begin - max(oldest, begin) + 1)
                )
                stores.append(running.slot * ring + position % ring if count - j <= ring else -1)
            offsets.append(offsets[-1] + count)
        tables = {ratio: self._prefill_entries(chunks, ratio) for ratio in self.ratios}
        return PrefillMetadata(
            query_offsets=_int(offsets),
            state_slots=_int([running.slot for running, _ in chunks]),
            window_store_slots=_int(stores),
            window_segments=_int(segments),
            window_pivots=_int(pivots),
            compressed_offsets={r: _int(t.offsets) for r, t in tables.items()},
            compressed_positions={r: _int(t.positions) for r, t in tables.items()},
            compressed_store_slots={r: _int(t.stores) for r, t in tables.items()},
            compressed_segments={r: _int(t.segments) for r, t in tables.items()},
            num_compressed_rows={r: len(t.segments) for r, t in tables.items()},
            entry_begin={r: _int(t.begin) for r, t in tables.items()},
            entry_end={r: _int(t.end) for r, t in tables.items()},
        )

    def _prefill_entries(self, chunks: Sequence[tuple[Running, int]], ratio: int) -> SimpleNamespace:
        out = SimpleNamespace(offsets=[0], positions=[], stores=[], segments=[], begin=[], end=[])
        per_block = self._block_tokens // ratio
        for running, count in chunks:
            first, total = running.done, running.done + count
            new = range(first // ratio, total // ratio)
            out.positions += [c * ratio for c in new] or [0]
            out.stores += self._entry_slots(running, ratio, new) or [-1]
            out.offsets.append(len(out.positions))
            start = len(out.segments)
            for entry in range(total // ratio):
                place = entry % per_block
                out.segments.append((running.table[entry // per_block], place, place + 1, len(out.segments)))
            if total // ratio == 0:
                out.segments.append((-1, 0, 1, len(out.segments)))
            out.begin += [start] * count
            out.end += [start + (position + 1) // ratio for position in range(first, total)]
        return out

    def _decode_metadata(self, chunks: Sequence[tuple[Running, int]], placeholders: int) -> DecodeMetadata:
        window, ring = self.model.config.sliding_window, self.views.layout.ring_length
        rows = [
            (index, running, position)
            for index, (running, count) in enumerate(chunks)
            for position in range(running.done, running.done + count)
        ]
        nobody = Running(torch.zeros(1, dtype=torch.int64), 0, [0])
        rows += [(998244353, nobody, 0)] * placeholders
        width = max(len(running.table) for _, running, _ in rows)
        reads = []
        for _, running, position in rows:
            length = min(position + 1, window)
            reads.append((running.slot * ring + (position - length + 1) % ring, length))

        def completed(ratio: int) -> list[tuple[int, int]]:
            return [
                (p // ratio * ratio, self._entry_slots(running, ratio, [p // ratio])[0])
                if (p + 1) % ratio == 0
                else (0, -1)
                for _, running, p in rows
            ]

        entries = {ratio: completed(ratio) for ratio in self.ratios}
        return DecodeMetadata(
            query_indices=_int([index for index, _, _ in rows]),
            state_slots=_int([running.slot for _, running, _ in rows]),
            window_store_slots=_int([running.slot * ring + p % ring for _, running, p in rows]),
            window_reads=_int(reads),
            context_lengths=_int([p + 1 for _, _, p in rows]),
            block_tables=_int([running.table + [0] * (width - len(running.table)) for _, running, _ in rows]),
            compressed_positions={r: _int([position for position, _ in e]) for r, e in entries.items()},
            compressed_store_slots={r: _int([slot for _, slot in e]) for r, e in entries.items()},
            visible_entries={r: _int([(p + 1) // r for _, _, p in rows]) for r in self.ratios},
        )


def _int(values: Sequence[object]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)
