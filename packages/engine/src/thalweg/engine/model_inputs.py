"""Completes the inputs of a forward pass on the device.

The host ships a decode step before it knows what the step in flight will accept. Here its lengths, token ids and n-gram
windows are put right with what that step left on the device; nothing is read back.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from thalweg.cache import MetadataShape
from thalweg.engine.device import Prepared, Sampled
from thalweg.engine.inputs import DecodeInputs, PrefillInputs, StepInputs
from thalweg.engine.token_rows import CompressedVocabulary
from thalweg.engine.upload import Uploader
from thalweg.interfaces import Backend
from thalweg.model.metadata import ConsumerMetadata, DecodeMetadata, ForwardBatch, PrefillMetadata

_UPLOADED = (
    "query_lengths",
    "base_lengths",
    "previous_rows",
    "state_slots",
    "block_offsets",
    "block_ids",
    "token_ids",
    "ngram_ids",
    "windows",
    "is_placeholder",
)
"""Fields of `DecodeInputs`."""


class ModelInputs:
    """Turns the host's inputs of any step of one deployment into tensors.

    ops: bound kernel ops. shape: the lengths of the cache. table_width: columns of the block tables of a decode step.
    vocab_size: of the model, which may draw ids that the compressed vocabulary does not have. with_mask: every decode
    step says which of its rows are valid, so that all have the same tensors.
    """

    def __init__(
        self,
        backend: Backend,
        ops: Any,
        upload: Uploader,
        shape: MetadataShape,
        table_width: int,
        vocabulary: CompressedVocabulary,
        vocab_size: int,
        *,
        with_mask: bool = False,
    ) -> None:
        self._backend = backend
        self._ops = ops
        self._upload = upload
        self._shape = shape
        self._table_width = table_width
        self._pad_id = vocabulary.pad_id
        self._with_mask = with_mask
        every_id = vocabulary.compress(np.arange(max(vocab_size, vocabulary.ids.size)))
        self._compressed_ids = torch.from_numpy(every_id).to(backend.device)

    def prepare(self, inputs: StepInputs, left: Sampled | None, *, redistribute: bool = False) -> Prepared:
        """Device work. left: of the decode step before, where this one shares sequences with it."""
        if isinstance(inputs, PrefillInputs):
            return self._prefill(inputs)
        return self._decode(inputs, left, redistribute)

    def _prefill(self, inputs: PrefillInputs) -> Prepared:
        rows = inputs.rows
        moved = self._upload.fields(
            {
                "batch": {"token_ids": rows.token_ids, "positions": rows.positions, "ngram_ids": rows.ngram_ids},
                "metadata": inputs.metadata.metadata(),
                "query_lengths": inputs.query_lengths,
                "context_lengths": inputs.context_lengths,
                "consumers": None if inputs.consumers is None else inputs.consumers.metadata(),
            }
        )
        query_lengths, metadata = moved["query_lengths"], PrefillMetadata(**moved["metadata"])
        consumers = None if moved["consumers"] is None else ConsumerMetadata(**moved["consumers"])
        row_counts = query_lengths.long() if consumers is None else consumers.query_offsets.long().diff()
        return Prepared(
            batch=ForwardBatch(**moved["batch"]),
            metadata=metadata,
            query_lengths=query_lengths,
            context_lengths=moved["context_lengths"],
            state_slots=metadata.state_slots,
            selected_rows=row_counts.cumsum(0) - 1,
            consumers=consumers,
        )

    def _decode(self, inputs: DecodeInputs, left: Sampled | None, redistribute: bool) -> Prepared:
        ops, moved = self._ops, self._upload.fields({name: getattr(inputs, name) for name in _UPLOADED})
        previous_rows, lengths, state_slots = moved["previous_rows"], moved["query_lengths"], moved["state_slots"]
        count = inputs.previous_rows.size - inputs.num_padding
        draft_length = inputs.token_ids.shape[1] - 1
        tokens, drafts, num_accepted = _of_no_step(lengths, draft_length) if left is None else left.for_next_step
        host_lengths = None
        if redistribute and left is not None:
            total = inputs.num_rows - inputs.num_padding
            shared = ops.redistribute(total, previous_rows[:count], left.confidences)
            lengths = torch.cat((shared, lengths[count:])) if inputs.num_padding else shared
            host_lengths = self._backend.copy_to_host(shared)[0]
        contexts = ops.correct_context_lengths(
            moved["base_lengths"], lengths, previous_rows, num_accepted, draft_length
        )
        rows = ops.decode_metadata(
            lengths,
            contexts,
            state_slots,
            moved["block_ids"],
            moved["block_offsets"],
            moved["is_placeholder"],
            tokens_per_block=self._shape.tokens_per_block,
            window_size=self._shape.window_size,
            ring_length=self._shape.ring_length,
            ratios=self._shape.ratios,
            table_width=self._table_width,
            num_queries=inputs.num_rows,
            max_blocks=inputs.max_blocks,
        )
        token_ids = ops.gather_token_ids(lengths, previous_rows, moved["token_ids"], tokens, drafts, inputs.num_rows)
        ngram_ids = ops.gather_ngram_ids(
            lengths,
            previous_rows,
            moved["ngram_ids"],
            moved["windows"],
            tokens,
            drafts,
            num_accepted,
            self._compressed_ids,
            self._pad_id,
            inputs.num_rows,
        )
        batch = ForwardBatch(
            token_ids=token_ids.long(),
            positions=rows.positions.long(),
            ngram_ids=ngram_ids,
            valid_mask=rows.valid_mask if self._with_mask or inputs.is_placeholder.any() else None,
        )
        return Prepared(
            batch,
            _metadata(rows),
            lengths[:count],
            contexts[:count],
            state_slots[:count],
            None,
            host_lengths,
            inputs.num_padding,
        )


def _of_no_step(like: torch.Tensor, draft_length: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """What a step without sequences would leave; every row of the next one is known to the host."""
    return like.new_empty(0), like.new_empty((0, draft_length)), like.new_empty(0)


def _metadata(rows: Any) -> DecodeMetadata:
    """The part of the device's rows that the attention memory needs."""
    return DecodeMetadata(
        query_indices=rows.query_indices,
        state_slots=rows.state_slots,
        window_store_slots=rows.window_store_slots,
        window_reads=rows.window_reads,
        context_lengths=rows.context_lengths,
        block_tables=rows.block_tables,
        compressed_positions=rows.compressed_positions,
        compressed_store_slots=rows.compressed_store_slots,
        visible_entries=rows.visible_entries,
    )
