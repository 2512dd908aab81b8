"""Whether a longer context helps: whole held-out documents against the same text with everything before forgotten."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from tools.train.evaluate.models import Subject
from tools.train.evaluate.report import Figure
from tools.train.evaluate.runner import token_losses
from torch import Tensor

from thalweg.interfaces import ConfigError

MEASURE = "long context"
SEGMENT = 1024


def read_documents(data: Path, length: int) -> Tensor:
    """int64 [n, length + 1]: the beginnings of the held-out documents that are long enough.

    Raises ConfigError when there is none.
    """
    stream = np.load(data / "held_out.npy", mmap_mode="r")
    documents = json.loads((data / "held_out.json").read_text(encoding="utf-8"))
    starts = [document["start"] for document in documents if document["end"] - document["start"] > length]
    if not starts:
        raise ConfigError(f"{data / 'held_out.json'} has no document of more than {length} tokens; one is needed")
    return torch.from_numpy(np.stack([stream[start : start + length + 1].astype(np.int64) for start in starts]))


def measure(subject: Subject, documents: Tensor, segment: int = SEGMENT) -> Iterator[Figure]:
    """Of each segment the loss with all text before it, and that minus the loss after a restart.

    documents: int64 [n, length + 1], the length a multiple of the segment. A restart has BOS in place of the token
    before those that it predicts, as training windows do.
    """
    model = subject.model("plain")
    whole = token_losses(model, documents, subject.device)
    windows = restarts(documents, segment, subject.config.bos_token_id)
    fresh = token_losses(model, windows, subject.device).view_as(whole)
    over = f"{len(documents)} held-out documents cut at {whole.shape[1]:,}, {len(documents) * segment:,} tokens each"
    segments = zip(torch.split(whole, segment, 1), torch.split(fresh, segment, 1), strict=True)
    for number, (with_past, without) in enumerate(segments):
        name = f"from {number * segment:,}"
        difference = (with_past - without).mean(0)
        most = 0.0 if number else None
        yield Figure(MEASURE, f"{name}, loss", float(with_past.mean()), "nats/token", over)
        yield Figure(MEASURE, f"{name}, against a restart", float(difference.mean()), "nats/token", over, most=most)
        for half, part in zip(("first", "second"), difference.chunk(2), strict=True):
            yield Figure(MEASURE, f"{name}, against a restart, {half} half", float(part.mean()), "nats/token", over)


def restarts(documents: Tensor, segment: int, bos: int) -> Tensor:
    """Windows int64 [n * segments, segment + 1] that predict together what the documents [n, length + 1] do."""
    windows = documents.unfold(1, segment + 1, segment).clone()
    windows[..., 0] = bos
    return windows.flatten(0, 1)
