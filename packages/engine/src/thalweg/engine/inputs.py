"""From a step plan to the tensors of a forward pass and of the sampler.

Everything is computed per step in numpy, without a loop over tokens, and becomes tensors at the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from thalweg.cache import MetadataShape, build_decode_metadata, build_prefill_metadata
from thalweg.engine.requests import SamplingRow
from thalweg.engine.sampler_inputs import SamplerInputs, build_sampler_inputs
from thalweg.engine.token_rows import CompressedVocabulary, build_token_rows
from thalweg.interfaces import StepKind, StepPlan
from thalweg.model.metadata import DecodeMetadata, ForwardBatch, PrefillMetadata

PLACEHOLDER_SEQUENCE = -1
"""Sequence id of a padding row: it runs through the model and leaves no trace."""


@dataclass(frozen=True, slots=True)
class StepInputs:
    """What the runner hands to the model and to the sampler."""

    batch: ForwardBatch
    metadata: PrefillMetadata | DecodeMetadata
    sampler: SamplerInputs


class InputBuilder:
    """Builds the inputs of any plan of one deployment.

    shape: the lengths of the cache. table_width: columns of the block tables of a decode step.
    """

    def __init__(
        self,
        shape: MetadataShape,
        table_width: int,
        vocabulary: CompressedVocabulary,
        device: torch.device | str = "cpu",
    ) -> None:
        self._shape = shape
        self._table_width = table_width
        self._vocabulary = vocabulary
        self._device = device

    def build(self, plan: StepPlan, sampling: Sequence[SamplingRow]) -> StepInputs:
        """Inputs of a plan with at least one row; `sampling` holds one entry per row."""
        rows = build_token_rows(plan, self._vocabulary)
        placeholder = plan.sequence_ids == PLACEHOLDER_SEQUENCE
        valid = None if not placeholder.any() else self._tensor(~placeholder[rows.sequence_rows])
        batch = ForwardBatch(
            token_ids=self._tensor(rows.token_ids),
            positions=self._tensor(rows.positions),
            ngram_ids=self._tensor(rows.ngram_ids),
            valid_mask=valid,
        )
        is_prefill = plan.kind is StepKind.PREFILL
        metadata = self._prefill(plan) if is_prefill else self._decode(plan, placeholder)
        return StepInputs(batch, metadata, build_sampler_inputs(plan, sampling))

    def _prefill(self, plan: StepPlan) -> PrefillMetadata:
        arrays = build_prefill_metadata(
            self._shape,
            plan.query_lengths,
            plan.context_lengths,
            plan.state_slots,
            plan.block_offsets,
            plan.block_ids,
            plan.window_valid_start,
        )
        return PrefillMetadata(**self._tensors(arrays.metadata()))

    def _decode(self, plan: StepPlan, is_placeholder: Any) -> DecodeMetadata:
        arrays = build_decode_metadata(
            self._shape,
            plan.query_lengths,
            plan.context_lengths,
            plan.state_slots,
            plan.block_offsets,
            plan.block_ids,
            self._table_width,
            is_placeholder,
        )
        return DecodeMetadata(**self._tensors(arrays.metadata()))

    def _tensors(self, fields: dict[str, Any]) -> dict[str, Any]:
        return {name: self._convert(value) for name, value in fields.items()}

    def _convert(self, value: Any) -> Any:
        if isinstance(value, dict):
            return {ratio: self._convert(item) for ratio, item in value.items()}
        return self._tensor(value) if isinstance(value, np.ndarray) else value

    def _tensor(self, array: np.ndarray[Any, Any]) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(self._device)
