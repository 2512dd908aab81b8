"""A checkpoint served by the engine: what its losses, its experts and its drafts come to there."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tools.train.evaluate.routing import ExpertLoads, skew

from thalweg.dspark import ConfidenceRecords, read_records
from thalweg.dspark.reliability import measure_reliability
from thalweg.engine import EngineConfig, SamplingParams, build_engine
from thalweg.interfaces import RequestOutput
from thalweg.model import AttentionMemory, ForwardBatch, Model, ModelConfig, TargetFeatures, Trace


@dataclass(frozen=True, slots=True)
class WindowFigures:
    """What one mode makes of a few windows."""

    losses: list[float]
    """Nats per token of each window."""
    largest_loads: list[float]
    """Of each layer, the rows of the most loaded expert over the mean."""


@dataclass(frozen=True, slots=True)
class DraftFigures:
    """What drafts were worth at one temperature; lists are by position, over the drafts whose predecessors all held."""

    tokens_per_step: float
    num_drafts: list[int]
    """How many drafts the figures of a position are about."""
    acceptance: list[float]
    confidence: list[float]
    """Mean of what the drafter promised."""
    calibration_error: list[float]
    """Expected error of these promises."""


class CountedModel(Model):
    """A model that counts which experts its rows visit."""

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self.loads = ExpertLoads(self.config.n_routed_experts)

    def forward(
        self,
        batch: ForwardBatch,
        memory: AttentionMemory,
        trace: Trace | None = None,
        features: TargetFeatures | None = None,
    ) -> torch.Tensor:
        """As of the model; the trace is the counter."""
        return super().forward(batch, memory, self.loads, features)


def serve_windows(checkpoint: Path, windows: NDArray[np.uint16], mode: str, arithmetic: str) -> WindowFigures:
    """Windows [n, L + 1] as prompts; what is predicted of a window are its last L tokens."""
    model = CountedModel.load(checkpoint, mode, arithmetic)
    params = SamplingParams(max_tokens=1, prompt_logprobs=0)
    options = {"mode": mode, "arithmetic": arithmetic, "draft_length": 0}
    outputs = serve(checkpoint, windows.astype(np.int64).tolist(), params, model=model, **options)
    assert isinstance(model, CountedModel)
    return WindowFigures([_loss(output) for output in outputs], [skew(counts) for counts in model.loads.loads.values()])


def serve_drafts(
    checkpoint: Path, prompts: Sequence[Sequence[int]], temperature: float, num_tokens: int
) -> tuple[list[RequestOutput], DraftFigures | None]:
    """Continuations with the two best log-probabilities of each token, and drafts; None without a drafter."""
    params = SamplingParams(temperature=temperature, max_tokens=num_tokens, ignore_eos=True, seed=0, logprobs=2)
    if not ModelConfig.from_file(checkpoint).num_draft_layers:
        return serve(checkpoint, prompts, params), None
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "records.jsonl"
        outputs = serve(checkpoint, prompts, params, confidence_records=str(file))
        return outputs, draft_figures(read_records(file))


def serve(
    checkpoint: Path,
    prompts: Sequence[Sequence[int]],
    params: SamplingParams,
    model: Model | None = None,
    **options: Any,
) -> list[RequestOutput]:
    """The outputs of all prompts, one batch, in the order of the prompts; options: of the engine."""
    longest = max(map(len, prompts)) + (params.max_tokens or 0)
    config = EngineConfig.build(
        environ={},
        model=str(checkpoint),
        max_num_seqs=len(prompts),
        max_model_len=longest,
        stop_preempted_request=False,
        **options,
    )
    finals: dict[str, RequestOutput] = {}
    with build_engine(config, model=model) as engine:
        for number, prompt in enumerate(prompts):
            engine.add_request(str(number), list(prompt), params)
        while engine.has_unfinished():
            finals |= {output.request_id: output for output in engine.step() if output.finished}
    outputs = [finals[str(number)] for number in range(len(prompts))]
    assert all(output.error is None for output in outputs), [output.error for output in outputs]
    return outputs


def draft_figures(records: ConfidenceRecords) -> DraftFigures:
    """Figures by position from the confidences [R, G] and outcomes of fixed-length verification."""
    num_drafts, acceptance, confidence, errors = [], [], [], []
    for position in range(records.draft_length):
        is_reached = (records.num_accepted >= position) & ~np.isnan(records.confidences[:, position])
        told, held = records.confidences[is_reached, position], records.num_accepted[is_reached] > position
        num_drafts.append(len(held))
        acceptance.append(float(held.mean()) if len(held) else 0.0)
        confidence.append(float(told.mean()) if len(held) else 0.0)
        errors.append(measure_reliability(told, held).error if len(held) else 0.0)
    return DraftFigures(1 + float(records.num_accepted.mean()), num_drafts, acceptance, confidence, errors)


def _loss(output: RequestOutput) -> float:
    """Nats per prompt token from the second one on."""
    assert output.prompt_logprobs is not None
    told = zip(output.prompt_token_ids[1:], output.prompt_logprobs, strict=True)
    return -float(np.mean([logprobs[token] for token, logprobs in told]))
