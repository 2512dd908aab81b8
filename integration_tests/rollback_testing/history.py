"""One sequence computed token by token: the bytes and the logits that any other way of computing it must reproduce."""

from __future__ import annotations

import numpy as np
import torch

from rollback_testing.bench import Bench, Memory
from rollback_testing.plans import DecodeRow, Ids


class History:
    """memory[c]: the bytes with c tokens in the cache. logits[p]: float32 [V] at position p."""

    def __init__(self, bench: Bench, text: Ids) -> None:
        """Prefill the first token, then decode the rest one by one; the last token of the text stays outside."""
        self.text = text
        self.memory: dict[int, Memory] = {}
        self.logits: dict[int, torch.Tensor] = {}
        lane = bench.lane(text)
        self.logits[0] = bench.prefill([(lane, 0, 1)])[0]
        self.memory[1] = bench.memory(lane)
        nothing = np.zeros(bench.draft_length, np.int32)
        for cached in range(1, len(text) - 1):
            (logits,) = bench.decode([DecodeRow(lane, cached, nothing, 0)])
            self.logits[cached] = logits[0]
            self.memory[cached + 1] = bench.memory(lane)
        bench.free([lane])
