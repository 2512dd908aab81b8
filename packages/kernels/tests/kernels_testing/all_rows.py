"""All examples of rows, and the ops that have none."""

from __future__ import annotations

import kernels_testing.attention_rows
import kernels_testing.cache_rows
import kernels_testing.expert_rows
import kernels_testing.forward_rows
import kernels_testing.fused_rows
import kernels_testing.indexer_rows
import kernels_testing.linear_rows
import kernels_testing.norm_rope_rows
import kernels_testing.sampling_rows  # noqa: F401
import torch
from kernels_testing.row_cases import CASES, RowCase

from thalweg.interfaces import ConfigError
from thalweg.kernels import Implementation

NOT_BY_ROW = {
    "choose_replicas": "by contract, the place of a row in the batch decides which copy of an expert it takes",
    "inverse_frequencies": "has no rows",
    "pack_fp8_weight": "has no rows",
    "redistribute": "shares one budget out among the whole batch",
}
"""Ops that have no examples, and why."""


def examples_of(op: str) -> list[RowCase]:
    return [case for case in CASES if case.op == op]


def is_taken(case: RowCase, implementation: Implementation, device: torch.device) -> bool:
    """Whether the implementation takes the sizes and number formats of an example; runs it on all its rows."""
    with torch.device(device):
        call = case.make(**case.parameters)
        try:
            call(implementation.function, torch.arange(case.num_rows))
        except ConfigError:
            return False
    return True
