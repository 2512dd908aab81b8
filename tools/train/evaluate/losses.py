"""How well the model predicts held-out text, and what each step of quantisation costs."""

from __future__ import annotations

import math
from collections.abc import Iterator

from tools.train.evaluate.models import Subject
from tools.train.evaluate.report import Figure
from tools.train.evaluate.runner import token_losses
from tools.train.evaluate.windows import Windows

from thalweg.model import Model

MEASURE = "losses"
MOST_BITS_PER_BYTE = 0.72
MOST_QUANTISATION_NATS = 0.02


def measure(subject: Subject, master: Subject | None, windows: Windows) -> Iterator[Figure]:
    """Losses of the stored weights, of the master weights where there are any, and with every value quantised."""
    plain = mean_loss(subject.model("plain"), subject, windows)
    yield from _as_figures("stored weights, plain", plain, windows, MOST_BITS_PER_BYTE)
    if master is not None:
        loss = mean_loss(master.model("plain"), master, windows)
        yield from _as_figures("master weights, plain", loss, windows)
        yield Figure(MEASURE, "what storing the weights costs", plain - loss, "nats/token", windows.description)
    quant = mean_loss(subject.model("quant"), subject, windows)
    yield from _as_figures("stored weights, quant", quant, windows)
    added = "what activations, KV and index quantised add"
    yield Figure(MEASURE, added, quant - plain, "nats/token", windows.description, most=MOST_QUANTISATION_NATS)


def mean_loss(model: Model, subject: Subject, windows: Windows) -> float:
    """Nats per predicted token."""
    return float(token_losses(model, windows.tokens, subject.device).mean())


def _as_figures(name: str, loss: float, windows: Windows, most_bits: float | None = None) -> Iterator[Figure]:
    over = windows.description
    yield Figure(MEASURE, name, loss, "nats/token", over)
    yield Figure(MEASURE, name, math.exp(loss), "perplexity", over)
    bits = loss * windows.num_tokens / windows.num_bytes / math.log(2)
    yield Figure(MEASURE, name, bits, "bits/byte", over, most=most_bits)
