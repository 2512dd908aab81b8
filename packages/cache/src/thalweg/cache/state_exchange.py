"""A sequence's state outside its slot: what a store keeps of it, and what another engine needs to go on with it.

Outside, window rings always have the length without `extra_ring`, so that a prefill engine with longer rings and a
decode engine exchange the same bytes. Position p lies at row p mod ring length on both sides.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch

from thalweg.cache.layout import compute_layout
from thalweg.cache.pool import CachePools
from thalweg.interfaces import ConfigError


class StateExchange:
    """Exports state slots of a pool to flat buffers, and imports them."""

    def __init__(self, pools: CachePools) -> None:
        self._states = pools.states
        self._inside = pools.layout
        self._outside = compute_layout(replace(pools.geometry, extra_ring=0))
        self._record = pools.window_format.record_bytes(pools.geometry.head_dim)
        self._num_stored_layers = pools.geometry.num_stored_layers

    @property
    def stored_bytes(self) -> int:
        """Size of what a store keeps: windows of the producer layers."""
        return self._outside.slot_stored_bytes

    @property
    def full_bytes(self) -> int:
        """Size of all that a decode engine needs: all windows and the compressor rings."""
        return self._outside.slot_bytes

    def export_state(self, slot: int, end: int, out: torch.Tensor, *, full: bool, valid_start: int = 0) -> None:
        """Copy the state of a sequence after `end` tokens into `out`, uint8 [stored_bytes], or [full_bytes] if `full`.

        Positions from max(end - window, valid_start) on are what a reader may rely on; those below valid_start become
        zeros, so that no other sequence's bytes leave the slot. `full` needs `end` to be the current length, since
        compressor rings are copied as they are; without it `end` is a whole number of blocks. Does not wait.
        """
        self._check(slot, end, out)
        needed = self.full_bytes if full else self.stored_bytes
        if out.numel() != needed:
            raise ConfigError(f"out has {out.numel()} bytes; with full={full} it needs {needed}")
        if not full and end % self._inside.tokens_per_block:
            raise ConfigError(f"end is {end}; a store keeps states at multiples of {self._inside.tokens_per_block}")
        if not 0 <= valid_start <= end:
            raise ConfigError(f"valid_start is {valid_start}; 0..{end} are accepted")
        state, layers = self._states[slot], self._num_layers(full)
        first = end - self._outside.ring_length
        for begin, stop in self._stretches(max(first, valid_start), end):
            self._rows(out, self._outside.ring_length, layers, begin, stop).copy_(
                self._rows(state, self._inside.ring_length, layers, begin, stop), non_blocking=True
            )
        for begin, stop in self._stretches(first, min(max(valid_start, first), end)):
            self._rows(out, self._outside.ring_length, layers, begin, stop).zero_()
        if full:
            for outside, inside in zip(self._outside.compressor_spans, self._inside.compressor_spans, strict=True):
                out[outside.offset : outside.offset + outside.length].copy_(
                    state[inside.offset : inside.offset + inside.length], non_blocking=True
                )

    def import_state(self, slot: int, end: int, data: torch.Tensor) -> None:
        """The inverse of `export_state`, whose size tells which kind it is: stored bytes leave all else of the slot.

        data: uint8 [stored_bytes] or [full_bytes]. Does not wait.
        """
        self._check(slot, end, data)
        if data.numel() not in (self.stored_bytes, self.full_bytes):
            raise ConfigError(f"data has {data.numel()} bytes; {self.stored_bytes} or {self.full_bytes} are accepted")
        full = data.numel() == self.full_bytes
        state, layers = self._states[slot], self._num_layers(full)
        for begin, stop in self._stretches(end - self._outside.ring_length, end):
            self._rows(state, self._inside.ring_length, layers, begin, stop).copy_(
                self._rows(data, self._outside.ring_length, layers, begin, stop), non_blocking=True
            )
        if full:
            for outside, inside in zip(self._outside.compressor_spans, self._inside.compressor_spans, strict=True):
                state[inside.offset : inside.offset + inside.length].copy_(
                    data[outside.offset : outside.offset + outside.length], non_blocking=True
                )

    def _num_layers(self, full: bool) -> int:
        return (
            len(self._outside.window_spans) if full else min(self._num_stored_layers, len(self._outside.window_spans))
        )

    def _stretches(self, begin: int, end: int) -> Iterator[tuple[int, int]]:
        """Parts of positions [begin, end) that wrap in neither ring."""
        while begin < end:
            rest = min(ring - begin % ring for ring in (self._inside.ring_length, self._outside.ring_length))
            stop = min(end, begin + rest)
            yield begin, stop
            begin = stop

    def _rows(self, state: torch.Tensor, ring_length: int, layers: int, begin: int, stop: int) -> torch.Tensor:
        """uint8 [layers, bytes]: positions begin..stop-1, which do not wrap, of the first window rings of a state."""
        layout = self._outside if ring_length == self._outside.ring_length else self._inside
        ring_bytes = layout.window_spans[0].length
        offset = state.storage_offset() + begin % ring_length * self._record
        return state.as_strided((layers, (stop - begin) * self._record), (ring_bytes, 1), offset)

    def _check(self, slot: int, end: int, data: torch.Tensor) -> None:
        if not 1 <= slot < self._states.shape[0]:
            raise ConfigError(f"slot is {slot}; 1..{self._states.shape[0] - 1} are accepted")
        if end < 1:
            raise ConfigError(f"end is {end}; a state after at least 1 token is needed")
        if data.dtype != torch.uint8 or data.dim() != 1 or not data.is_contiguous():
            raise ConfigError(f"data is {data.dtype} {list(data.shape)}; contiguous uint8 [bytes] is needed")
