"""The drafter that an engine runs: the draft network over the window rings of the cache."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch

from thalweg.interfaces import CacheViews, ConfigError, DraftRows, DraftSampler, InvariantError, TargetRows
from thalweg.model.drafter.block_network import BlockNetwork
from thalweg.model.paged import window_format

BlockWork = Callable[[Sequence[torch.Tensor]], Sequence[torch.Tensor]]
"""From anchor ids, their positions and state slots, int32 [N] each, to the collapsed rows [N*G, h] of their blocks."""

_LEAST_TEMPERATURE = 1e-5


class CachedDrafter:
    """Satisfies `interfaces.Drafter`. Draft layer b keeps its keys in the ring of run-time layer num_hidden_layers + b.

    Main keys are written for every row the target model computes, rejected drafts included: the block that follows
    writes over the rows that were rejected, and the next step over the keys of the block.
    """

    def __init__(
        self,
        network: BlockNetwork,
        views: CacheViews,
        draft_length: int,
        confidence_temperatures: Sequence[float],
    ) -> None:
        """confidence_temperatures: one per draft; those below 1e-5 count as 1e-5.

        Raises ConfigError for a draft length outside 1..dspark_block_size, for temperatures of another number or that
        are not positive, and for a cache whose rings are too short or hold other records.
        """
        config = network.config
        if not 1 <= draft_length <= config.dspark_block_size:
            raise ConfigError(
                f"draft_length is {draft_length}; 1..{config.dspark_block_size} (dspark_block_size) are accepted"
            )
        ring, needed = views.layout.ring_length, config.sliding_window + draft_length
        if ring < needed:
            raise ConfigError(
                f"ring_length of the cache is {ring}; sliding_window + draft_length = {needed} positions are needed"
            )
        self._network = network
        self._views = views
        self._draft_length = draft_length
        self._temperatures = _checked(confidence_temperatures, draft_length)
        self._ring_length = ring
        self._compute_blocks: BlockWork = self._blocks
        window_format(config, network.numerics, views)

    @property
    def draft_length(self) -> int:
        return self._draft_length

    @property
    def target_layer_ids(self) -> tuple[int, ...]:
        return self._network.config.dspark_target_layer_ids

    def replace_blocks(self, wrap: Callable[[BlockWork], BlockWork]) -> None:
        """Have blocks computed by what `wrap` makes of the function that does: by graphs of it, for example."""
        self._compute_blocks = wrap(self._blocks)

    def observe(self, rows: TargetRows) -> None:
        """Write the main keys of every draft layer."""
        if rows.features is None:
            raise InvariantError(f"features is None; the drafter reads layers {list(self.target_layer_ids)}")
        self._network.write_main_keys(rows.features, rows.positions, self._views, rows.store_slots)

    def propose(self, rows: DraftRows, sampler: DraftSampler) -> tuple[torch.Tensor, torch.Tensor]:
        """Run one block per sequence, then draw its tokens one after the other."""
        network = self._network
        (block_rows,) = self._compute_blocks((rows.anchor_token_ids, rows.positions, rows.state_slots))
        base_logits = network.base_logits(block_rows).view(-1, self._draft_length, network.config.vocab_size)
        block_rows = block_rows.view(-1, self._draft_length, block_rows.shape[-1])
        token_ids = rows.anchor_token_ids
        drafts, confidences = [], []
        for place, temperature in enumerate(self._temperatures):
            markov_rows = network.markov_rows(token_ids)
            confidences.append(network.confidences(block_rows[:, place], markov_rows, temperature))
            token_ids = sampler.sample(place, network.biased(base_logits[:, place], markov_rows))
            drafts.append(token_ids)
        return torch.stack(drafts, 1).int(), torch.stack(confidences, 1)

    def _blocks(self, rows: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        """The work itself: blocks [anchor, noise, ...], the anchor at its own position; rows of position 0 are void."""
        anchor_ids, positions, state_slots = rows
        network, length = self._network, self._draft_length
        config, ops = network.config, network.numerics.ops
        indices = ops.draft_metadata(
            state_slots,
            positions - 1,
            draft_length=length,
            window_size=config.sliding_window,
            ring_length=self._ring_length,
        )
        token_ids = anchor_ids.new_full((len(anchor_ids), length), config.dspark_noise_token_id)
        token_ids[:, 0] = anchor_ids
        memory = network.block_memory(self._views, indices)
        return (network.block_rows(token_ids.flatten().long(), indices.positions.long(), indices.is_valid, memory),)


def _checked(temperatures: Sequence[float], draft_length: int) -> tuple[float, ...]:
    values = tuple(float(value) for value in temperatures)
    if len(values) != draft_length:
        raise ConfigError(f"confidence_temperatures has {len(values)} values; draft_length = {draft_length} are needed")
    for value in values:
        if not (math.isfinite(value) and value > 0):
            raise ConfigError(f"confidence_temperatures holds {value}; positive finite numbers are accepted")
    return tuple(max(value, _LEAST_TEMPERATURE) for value in values)
