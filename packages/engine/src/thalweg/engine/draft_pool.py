"""The distributions that the drafts of every running sequence were drawn from, kept from one step to the next.

Letters: N sequences, G draft length, V vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch

from thalweg.engine.config import EngineConfig
from thalweg.interfaces import Backend

_FLOAT_BYTES = 4


def draft_pool_bytes(config: EngineConfig, draft_length: int, vocab_size: int) -> int:
    """Memory of the pool of a deployment; by matching there is none."""
    if config.speculation.verification == "coupled":
        return 0
    return (1 + config.scheduler.max_num_seqs) * draft_length * vocab_size * _FLOAT_BYTES


class DraftPool:
    """One distribution per draft slot and place. Slot 0 is nobody's: its drafts are certain, and it is never written.

    ops: bound kernel ops; `store_draft_rows` is used. num_slots: draft slots, slot 0 included.
    """

    def __init__(self, backend: Backend, ops: Any, num_slots: int, draft_length: int, vocab_size: int) -> None:
        self._ops = ops
        self.logprobs: torch.Tensor = backend.empty((num_slots, draft_length, vocab_size), torch.float32)
        """float32 [slots, G, V]"""
        self.is_certain: torch.Tensor = backend.empty((num_slots, draft_length), torch.bool)
        """bool [slots, G] drafts of a distribution that holds nothing else, whatever is kept of it."""
        self.logprobs.fill_(-torch.inf)
        self.is_certain.fill_(True)

    def store(self, place: int, write_slots: torch.Tensor, logprobs: torch.Tensor) -> None:
        """Keep the distributions float32 [N, V] of one place. write_slots: int [N], 0 = do not."""
        self._ops.store_draft_rows(self.logprobs[:, place], write_slots, logprobs)

    def store_certain(self, write_slots: torch.Tensor, is_certain: torch.Tensor) -> None:
        """Say which drafts, bool [N, G], are certain. write_slots: int [N], 0 = do not."""
        self._ops.store_draft_rows(self.is_certain, write_slots, is_certain)
