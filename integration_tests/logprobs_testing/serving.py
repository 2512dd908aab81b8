"""Requests on the recorded model or a random one, served by a whole engine in exact arithmetic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np

from drafts_testing.pieces import cut_prompts
from rollback_testing.models import TINY_A, TWO_LAYERS, tiny_a
from thalweg.engine import EngineConfig, SamplingParams, build_engine
from thalweg.engine.statistics import StepRecord
from thalweg.interfaces import RequestOutput, StepKind
from thalweg.model import DraftNetwork, Model, small_config, write_random_checkpoint

Request = tuple[Sequence[int], SamplingParams]
SIZES: dict[str, Any] = {"max_num_seqs": 8, "max_model_len": 200, "stop_preempted_request": False}


@dataclass(frozen=True)
class Checkpoint:
    """A model with draft layers, in exact arithmetic."""

    path: str
    model: Model
    network: DraftNetwork


@cache
def recorded() -> Checkpoint:
    """Window 16, blocks of three drafts, 256 tokens."""
    return Checkpoint(str(TINY_A), *tiny_a())


@cache
def random_checkpoint() -> Checkpoint:
    """Two layers and one draft layer with blocks of five drafts."""
    path = Path(mkdtemp()) / "checkpoint"
    drafts = {"num_nextn_predict_layers": 1, "dspark_block_size": 5, "dspark_target_layer_ids": [0, 1]}
    write_random_checkpoint(path, small_config(**TWO_LAYERS, **drafts), seed=9)
    model = Model.load(path)
    return Checkpoint(str(path), model, DraftNetwork.load(path, model))


@dataclass
class Served:
    """Final outputs in the order of the requests, and what happened on the way."""

    finals: list[RequestOutput]
    num_held: int = 0
    """Drafts accepted."""
    num_refused: int = 0
    num_chunks: int = 0
    """Prefill rows that did not end their prompt."""
    verify_lengths: tuple[int, ...] = ()

    @property
    def num_preemptions(self) -> int:
        return sum(output.metrics.num_preemptions for output in self.finals if output.metrics)

    def see(self, record: StepRecord) -> None:
        outcome, plan = record.outcome, record.plan
        if plan.kind is StepKind.DECODE and plan.sequence_ids.size:
            self.num_held += int((outcome.num_accepted - 1).clip(0).sum())
            self.num_refused += int((outcome.num_verified - outcome.num_accepted).clip(0).sum())
            self.verify_lengths += tuple(outcome.num_verified.tolist())
        elif plan.sequence_ids.size:
            self.num_chunks += int((plan.context_lengths < plan.committed_lengths).sum())


def serve(
    checkpoint: Checkpoint,
    requests: Sequence[Request],
    *,
    step_times: Sequence[tuple[int, float]] = (),
    piece: int = 0,
    **options: Any,
) -> Served:
    """piece: prompts are computed in pieces that end at multiples of it; 0 = as the engine likes. options: its own."""
    config = EngineConfig.build(environ={}, model=checkpoint.path, check_lengths=True, **(SIZES | options))
    network = None if config.speculation.draft_length == 0 else checkpoint.network
    served = Served([])
    with build_engine(config, model=checkpoint.model, draft_network=network, step_times=step_times) as engine:
        if piece:
            cut_prompts(engine.scheduler, piece)
        engine.statistics.on_step(served.see)
        for number, (prompt, params) in enumerate(requests):
            engine.add_request(str(number), list(prompt), params)
        finals: dict[str, RequestOutput] = {}
        while engine.has_unfinished():
            finals |= {output.request_id: output for output in engine.step() if output.finished}
        assert engine.failure is None, engine.failure
    served.finals = [finals[str(number)] for number in range(len(requests))]
    return served


def text(seed: int, vocab_size: int, length: int) -> list[int]:
    """Tokens without the special ones at the beginning of the vocabulary."""
    return np.random.default_rng(seed).integers(5, vocab_size - 20, length).tolist()
