"""A step between its plan and its outputs, and the contract of what runs it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from thalweg.engine.device import Forwarded, Prepared, Sampled
from thalweg.engine.row_reports import RowDraws, RowLogprobs
from thalweg.engine.sampling_row import SequenceToSample
from thalweg.interfaces import StepCorrection, StepPlan, StepResult
from thalweg.interfaces.backend import Event, Launched, Timing


@dataclass(slots=True)
class InflightStep:
    """A launched step: everything that is kept of it until it is post-processed.

    Between two calls of `LLMEngine.step` at most one exists. A plan without rows runs nothing and has no results.
    """

    plan: StepPlan
    started_s: float
    prepared: Launched[Prepared] | None = None
    prepared_event: Event | None = None
    """Passes when the verify lengths of this step are settled."""
    is_redistributed: bool = False
    """The device shares out the verify lengths; the planned ones do not hold."""
    forwarded: Launched[Forwarded] | None = None
    correction: StepCorrection | None = None
    """What the scheduler knew better when the step before had been processed."""
    sequences: Sequence[SequenceToSample] = ()
    """What the sampler was told about each row."""
    sampled: Launched[Sampled] | None = None
    sampled_event: Event | None = None
    grammar_failures: Mapping[int, str] = field(default_factory=dict)
    """Row -> why its output cannot follow its grammar any further."""
    mask_s: float = 0.0
    """Seconds of the host in which masks were built."""
    timings: dict[str, Timing] = field(default_factory=dict)
    """When each part of the step ran on the device."""


@dataclass(frozen=True, slots=True)
class Collected:
    """What a finished step brings to the host."""

    result: StepResult
    broken_rows: NDArray[np.bool_]
    """[N+X] sequences whose newest token is meaningless: its logits held NaN or infinity, or nothing that may be drawn.
    X = siblings, in the order of their sequences, as everywhere below."""
    forward_s: float
    """Inside the model."""
    sampler_s: float
    """Drawing, verifying and drafting."""
    accept_probs: NDArray[np.float32] | None = None
    """[N, G] how likely each draft was to be accepted, NaN where none was verified; None for a step without drafts."""
    sibling_ids: NDArray[np.int32] = field(default_factory=lambda: np.zeros(0, np.int32))
    """[X] first tokens of the siblings; those of a prompt that is not finished yet are meaningless."""
    logprobs: RowLogprobs | None = None
    """Of output tokens; None = nobody asked."""
    prompt_logprobs: RowLogprobs | None = None
    """Of prompt tokens, those that nobody reported before; offsets [N+1]."""
    draws: RowDraws | None = None
    """None unless the engine was told to report draws."""
    starved_rows: NDArray[np.bool_] | None = None
    """[N+X] sequences whose grammar and options together left no token for the newest one; broken as well. None =
    nobody was constrained."""
    grammar_failures: Mapping[int, str] = field(default_factory=dict)
    """Row of the plan -> why its output cannot follow its grammar any further; its tokens of this step are void."""
    mask_s: float = 0.0
    """Seconds of the host in which the masks of grammars were built, while the model ran."""
    draft_faults: tuple[int, int] = (0, 0)
    """What was wrong with the next drafts: unusable ids, confidences outside 0..1."""


class Runner(Protocol):
    """Runs steps as device work. The calls for one step come in the order below; nothing but the waits blocks."""

    def launch(self, plan: StepPlan, previous: InflightStep | None) -> InflightStep:
        """Queue copies and forward pass. previous: the decode step in flight, whose tokens only the device knows."""

    def query_lengths(self, step: InflightStep) -> NDArray[np.int32] | None:
        """[N] verify lengths as the device shared them out, waiting for just that; None: the planned ones hold."""

    def sample(self, step: InflightStep, correction: StepCorrection | None, rows: Sequence[SequenceToSample]) -> None:
        """Queue sampling, verification and drafting.

        correction: of an asynchronous decode step; the plan's own numbers otherwise. rows: one entry per row.
        """

    def collect(self, step: InflightStep) -> Collected:
        """Wait for the step and fetch its results. Raises what its work raised."""

    def close(self) -> None:
        """Finish what is queued and let go of the device's memory."""
