"""Requests served by a whole engine, with every decode step and every draft on record."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from numpy.typing import NDArray

from rollback_testing.changes import Confide, HelpedSampler, Oracle, Texts
from thalweg.engine import EngineConfig, SamplingParams, build_engine
from thalweg.engine.model_device import ModelDevice
from thalweg.engine.statistics import StepRecord
from thalweg.interfaces import DraftRows, StepKind
from thalweg.model import CachedDrafter, DraftNetwork, Model


@dataclass
class Served:
    """What came of some requests; they have the sequence ids 0, 1, 2, ... in their order."""

    texts: Texts = field(default_factory=list)
    steps: list[StepRecord] = field(default_factory=list)
    """Decode steps."""
    rows_computed: list[int] = field(default_factory=list)
    """Query rows of each decode step's forward pass."""
    proposals: dict[tuple[int, int], tuple[int, tuple[int, ...], tuple[float, ...]]] = field(default_factory=dict)
    """(anchor, ids, confidences) by (sequence, position of the anchor)."""
    blocks: list[tuple[int, int]] = field(default_factory=list)
    """(token, position) of all rows of draft blocks, in the order of the proposals."""
    changed_proposals: list[tuple[int, int]] = field(default_factory=list)
    """Where the drafter said something else when it was asked again, after a preemption."""
    num_preempted: int = 0

    @property
    def num_verified(self) -> NDArray[np.int64]:
        """[G] rows that verified a draft at each place, and `num_accepted` those that accepted it.

        Without the first decode row of a request, whose drafts are padding.
        """
        return self._count(lambda record: record.outcome.num_verified)

    @property
    def num_accepted(self) -> NDArray[np.int64]:
        return self._count(lambda record: record.outcome.num_accepted)

    def _count(self, lengths: Callable[[StepRecord], NDArray[np.int32]]) -> NDArray[np.int64]:
        counts = np.zeros(self.steps[0].plan.draft_token_ids.shape[1], np.int64)
        begun: set[int] = set()
        for record in self.steps:
            for sequence, length in zip(record.plan.sequence_ids.tolist(), lengths(record).tolist(), strict=True):
                if sequence in begun:
                    counts[: max(length - 1, 0)] += 1
                begun.add(sequence)
        return counts


def serve(
    path: str,
    model: Model,
    network: DraftNetwork,
    prompts: Sequence[Sequence[int]],
    params: SamplingParams | Sequence[SamplingParams],
    *,
    oracle: Oracle | None = None,
    confide: Confide | None = None,
    step_times: Sequence[tuple[int, float]] = (),
    **options: Any,
) -> Served:
    """Serve the requests to their ends. oracle: helps the drafter; confide: speaks for it."""
    config = EngineConfig.build(environ={}, model=path, check_lengths=True, **options)
    served = Served()
    each = params if isinstance(params, Sequence) else [params] * len(prompts)
    with (
        _on_record(served, oracle, confide),
        build_engine(
            config,
            model=model,
            draft_network=network if config.speculation.draft_length != 0 else None,
            step_times=step_times,
        ) as engine,
    ):
        engine.statistics.on_step(lambda record: _take_step(served, record))
        for number, (prompt, one) in enumerate(zip(prompts, each, strict=True)):
            engine.add_request(str(number), list(prompt), one)
        outputs = {}
        while engine.has_unfinished():
            outputs |= {output.request_id: output for output in engine.step() if output.finished}
    served.texts = [[*prompt, *outputs[str(i)].outputs[0].token_ids] for i, prompt in enumerate(prompts)]
    return served


def _take_step(served: Served, record: StepRecord) -> None:
    served.num_preempted = record.plan.stats.num_preempted
    if record.plan.kind is StepKind.DECODE and record.plan.sequence_ids.size:
        served.steps.append(record)


@contextmanager
def _on_record(served: Served, oracle: Oracle | None, confide: Confide | None) -> Iterator[None]:
    """Watches forward passes and proposals; both run as device work, in stream order."""
    forward, propose, block_rows = ModelDevice.forward, CachedDrafter.propose, DraftNetwork.block_rows

    def watched_forward(device: ModelDevice, prepared: Any) -> Any:
        if prepared.selected_rows is None:
            served.rows_computed.append(prepared.batch.token_ids.shape[0])
        return forward(device, prepared)

    def watched_propose(drafter: CachedDrafter, rows: DraftRows, sampler: Any) -> tuple[torch.Tensor, torch.Tensor]:
        ids, confidences = propose(drafter, rows, sampler if oracle is None else HelpedSampler(sampler, oracle, rows))
        where = zip(rows.sequence_ids.tolist(), rows.positions.tolist(), rows.anchor_token_ids.tolist(), strict=True)
        for (sequence, position, anchor), drafts, sure in zip(where, ids.tolist(), confidences.tolist(), strict=True):
            said = anchor, tuple(drafts), tuple(sure)
            if served.proposals.setdefault((sequence, position), said) != said:
                served.changed_proposals.append((sequence, position))
        return ids, confidences if confide is None else confide(rows, confidences)

    def watched_rows(network: DraftNetwork, token_ids: torch.Tensor, positions: torch.Tensor, *rest: Any) -> Any:
        served.blocks.extend(zip(token_ids.tolist(), positions.tolist(), strict=True))
        return block_rows(network, token_ids, positions, *rest)

    with (
        patch.object(ModelDevice, "forward", watched_forward),
        patch.object(CachedDrafter, "propose", watched_propose),
        patch.object(DraftNetwork, "block_rows", watched_rows),
    ):
        yield
