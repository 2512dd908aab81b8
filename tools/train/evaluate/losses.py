"""How well the model predicts held-out text, and what each step of quantisation costs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from tools.train.evaluate.models import Subject
from tools.train.evaluate.report import Figure
from tools.train.evaluate.runner import token_losses
from tools.train.evaluate.windows import Windows
from torch import Tensor

from thalweg.model import Model

MEASURE = "losses"
MOST_BITS_PER_BYTE = 0.72
MOST_QUANTISATION_NATS = 0.02


def measure(
    subject: Subject, master: Subject | None, windows: Windows, keep: Callable[[str, list[float]], None]
) -> Iterator[Figure]:
    """Losses of the stored weights, of the master weights where there are any, and with every value quantised.

    keep: is given a name and the losses of single windows, by which another device can be compared.
    """

    def told(weights: Subject, mode: str, name: str) -> float:
        losses = window_losses(weights.model(mode), weights, windows)
        keep(f"{name}, by window", losses.tolist())
        return float(losses.mean())

    plain = told(subject, "plain", "stored weights, plain")
    yield from _as_figures("stored weights, plain", plain, windows, MOST_BITS_PER_BYTE)
    if master is not None:
        loss = told(master, "plain", "master weights, plain")
        yield from _as_figures("master weights, plain", loss, windows)
        yield Figure(MEASURE, "what storing the weights costs", plain - loss, "nats/token", windows.description)
    quant = told(subject, "quant", "stored weights, quant")
    yield from _as_figures("stored weights, quant", quant, windows)
    added = "what activations, KV and index quantised add"
    yield Figure(MEASURE, added, quant - plain, "nats/token", windows.description, most=MOST_QUANTISATION_NATS)


def window_losses(model: Model, subject: Subject, windows: Windows) -> Tensor:
    """float64 [n] nats per predicted token of each window."""
    return token_losses(model, windows.tokens, subject.device).mean(1)


def _as_figures(name: str, loss: float, windows: Windows, most_bits: float | None = None) -> Iterator[Figure]:
    over = windows.description
    yield Figure(MEASURE, name, loss, "nats/token", over)
    yield Figure(MEASURE, name, math.exp(loss), "perplexity", over)
    bits = loss * windows.num_tokens / windows.num_bytes / math.log(2)
    yield Figure(MEASURE, name, bits, "bits/byte", over, most=most_bits)
