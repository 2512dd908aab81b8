"""How much of the attention that compressed entries would get goes to those that the indexer selects.

The model runs as it is; beside each of its attentions the probabilities of *all* visible entries are formed, with the
window and the sink in the denominator, and added over heads. Of every row this gives the share of that mass that the
selection keeps, what the best k entries would keep, and what the last k would.
Letters: R rows of one sequence, H heads of D columns, W window keys, M entries, k selected.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from tools.train.evaluate import ops
from tools.train.evaluate.models import Subject
from tools.train.evaluate.report import Figure
from tools.train.evaluate.runner import forward, passes
from tools.train.evaluate.windows import Windows
from torch import Tensor

from thalweg.model import Model, SequenceMemory

MEASURE = "indexer"
FIRST_POSITION = 512
"""Earlier rows see few entries more than they may select."""
LEAST_OF_ORACLE = 0.9
SHARES = ("kept by the selection", "kept by the best entries", "kept by the last entries", "best entries selected")


class WatchedMemory(SequenceMemory):
    """Remembers for the attention that comes next which layer it is of and which entries its rows may see."""

    reader = -1
    """The layer that asked last."""
    visible: tuple[Tensor, Tensor] | None = None
    """Range of entries int64 begin [T], end [T]; None where the layer reads its window alone."""

    def window(self, layer: int, rows: Tensor) -> tuple[Tensor, Tensor]:
        """As of any memory."""
        self.reader, self.visible = layer, None
        return super().window(layer, rows)

    def selected_main(self, layer: int, selection: Tensor) -> tuple[Tensor, Tensor]:
        """As of any memory."""
        _, begin, end = self.index_keys(layer)
        self.visible = begin, end
        return super().selected_main(layer, selection)


class MassMeter:
    """The op `sparse_attention`, which adds up shares of mass by layer on the way."""

    def __init__(self, window_size: int, first_position: int = FIRST_POSITION) -> None:
        self._window_size = window_size
        self._first_position = first_position
        self.memory: WatchedMemory | None = None
        """Of the pass that runs."""
        self.sums: dict[int, Tensor] = {}
        """By layer, float64 sums of `SHARES` over rows."""
        self.num_rows: dict[int, int] = {}

    def __call__(self, q: Tensor, keys: Tensor, indices: Tensor, sink: Tensor, scale: float) -> Tensor:
        assert self.memory is not None, "a pass has to bring its memory"
        if self.memory.visible is not None:
            self._measure(q * scale, keys, indices, sink)
        return ops.sparse_attention(q, keys, indices, sink, scale)

    def _measure(self, q: Tensor, keys: Tensor, indices: Tensor, sink: Tensor) -> None:
        assert self.memory is not None
        assert self.memory.visible is not None
        layer, positions, (begin, end) = self.memory.reader, self.memory.positions, self.memory.visible
        entries = keys[q.shape[0] :]  # a whole sequence's window keys are as many as its rows
        for start in torch.unique(begin).tolist():
            rows = ((begin == start) & (positions >= self._first_position)).nonzero().squeeze(1)
            if not len(rows):
                continue
            own = entries[start : int(end[rows].max())]
            size = ops.rows_of_a_piece(q, q.shape[1] * (len(own) + self._window_size))
            for piece in torch.split(rows, size):
                visible = (end - begin)[piece]
                mass = self._mass(q[piece], keys, indices[piece], own, visible, sink)
                selected = indices[piece, self._window_size :] - q.shape[0] - start
                self._add(layer, shares(mass, selected, visible))

    def _mass(self, q: Tensor, keys: Tensor, indices: Tensor, own: Tensor, visible: Tensor, sink: Tensor) -> Tensor:
        """Probabilities of the entries own [M, D], added over heads: [R, M], zero for those a row cannot see."""
        window = indices[:, : self._window_size]
        recent = (q @ keys[window.clamp(min=0)].transpose(1, 2)).masked_fill(window[:, None] < 0, -torch.inf)
        column = torch.arange(len(own), device=q.device)
        older = (q @ own.t()).masked_fill((column >= visible[:, None])[:, None], -torch.inf)
        logits = torch.cat([older, recent, sink.type_as(q)[None, :, None].expand(len(q), -1, 1)], -1)
        return logits.softmax(-1)[..., : len(own)].sum(1)

    def _add(self, layer: int, rows: Tensor) -> None:
        self.sums[layer] = self.sums.get(layer, 0) + rows.double().sum(0).cpu()
        self.num_rows[layer] = self.num_rows.get(layer, 0) + len(rows)


def shares(mass: Tensor, selected: Tensor, visible: Tensor) -> Tensor:
    """`SHARES` of every row, [R, 4]: mass [R, M], selected int [R, k] with negative fill, visible int [R]."""
    k = min(selected.shape[1], mass.shape[1])
    best = mass.topk(k, dim=1)
    chosen = torch.zeros_like(mass, dtype=torch.bool)
    rows, columns = (selected >= 0).nonzero(as_tuple=True)
    chosen[rows, selected[rows, columns]] = True
    column = torch.arange(mass.shape[1], device=mass.device)
    is_last = (column < visible[:, None]) & (column >= visible[:, None] - k)
    kept = torch.stack([(mass * chosen).sum(1), best.values.sum(1), (mass * is_last).sum(1)], 1)
    is_entry = torch.arange(k, device=mass.device) < visible[:, None]
    found = (chosen.gather(1, best.indices) & is_entry).sum(1, keepdim=True) / is_entry.sum(1, keepdim=True)
    return torch.cat([kept / mass.sum(1, keepdim=True), found.type_as(mass)], 1)


def measure(subject: Subject, windows: Windows) -> Iterator[Figure]:
    """Mean shares of each layer that reads a stream, plain; unrestricted index sources have a bound."""
    meter = MassMeter(subject.config.sliding_window)
    run(subject.model("plain", {"sparse_attention": meter}), meter, windows.tokens[:, :-1], subject.device)
    for layer, sums in meter.sums.items():
        over = f"{windows.description}, of which {meter.num_rows[layer]:,} from position {FIRST_POSITION}"
        means = dict(zip(SHARES, (sums / meter.num_rows[layer]).tolist(), strict=True))
        kind = subject.config.topology[layer]
        role = "makes its selection" if kind.is_index_source else "reuses one"
        is_bound = kind.is_index_source and kind.candidate_source is None
        for name, value in means.items():
            unit = "of them" if name == SHARES[-1] else "of the mass"
            yield Figure(MEASURE, f"layer {layer} ({role}), {name}", value, unit, over)
        of_oracle = means[SHARES[0]] / means[SHARES[1]]
        least = LEAST_OF_ORACLE if is_bound else None
        yield Figure(MEASURE, f"layer {layer} ({role}), selection by best", of_oracle, "ratio", over, least=least)


@torch.no_grad()
def run(model: Model, meter: MassMeter, windows: Tensor, device: torch.device) -> None:
    """Windows int64 [n, L] through a model whose attention is the meter."""
    for part in passes(windows, device):
        lengths = [part.shape[1]] * len(part)
        meter.memory = WatchedMemory(model.config, lengths, model.numerics, device)
        forward(model, part.unbind(), memory=meter.memory)
