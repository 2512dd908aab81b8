"""Whole windows of equal length through a model, many at once, and what each of their tokens costs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from thalweg.model import ForwardBatch, Model, SequenceMemory, Trace

ROWS = {"cpu": 1024, "cuda": 32768}
"""Rows of one pass."""
LOGIT_ROWS = 4096
"""Rows whose logits exist at once."""


def forward(
    model: Model, sequences: Sequence[Tensor], *, memory: SequenceMemory | None = None, trace: Trace | None = None
) -> Tensor:
    """Final rows [T, h] of whole sequences int64 [L] on the device of the model, one after the other."""
    tokens = torch.cat(list(sequences))
    if memory is None:
        memory = SequenceMemory(model.config, [len(each) for each in sequences], model.numerics, tokens.device)
    return model.forward(ForwardBatch(tokens, memory.positions, _ngram_ids(model, sequences)), memory, trace)


def _ngram_ids(model: Model, sequences: Sequence[Tensor]) -> Tensor:
    """int64 [T, N]"""
    if model.vocabulary is None:
        return torch.cat(list(sequences)).new_zeros(sum(map(len, sequences)), 0)
    size = model.config.engram_max_ngram_size
    rows = [torch.from_numpy(model.vocabulary.ngram_ids(each.cpu().numpy(), size)) for each in sequences]
    return torch.cat(rows).to(sequences[0].device)


def passes(windows: Tensor, device: torch.device) -> Iterator[Tensor]:
    """Windows [n, L] in as few passes as the device has room for, on the device."""
    for part in torch.split(windows, max(1, ROWS[device.type] // windows.shape[1])):
        yield part.to(device)


@torch.no_grad()
def token_losses(model: Model, windows: Tensor, device: torch.device, trace: Trace | None = None) -> Tensor:
    """float64 [n, L] nats of every token but the first of windows int64 [n, L + 1], on the host."""
    return torch.cat([_losses(model, part, trace) for part in passes(windows, device)]).cpu()


def _losses(model: Model, windows: Tensor, trace: Trace | None) -> Tensor:
    hidden = forward(model, windows[:, :-1].unbind(), trace=trace)
    targets = windows[:, 1:].flatten()
    pieces = zip(torch.split(hidden, LOGIT_ROWS), torch.split(targets, LOGIT_ROWS), strict=True)
    losses = [
        torch.nn.functional.cross_entropy(model.logits(rows).double(), wanted, reduction="none")
        for rows, wanted in pieces
    ]
    return torch.cat(losses).view(len(windows), -1)
