"""The figures of the periodic line, in groups. What was not measured is None or empty, and never a made-up zero."""

from __future__ import annotations

from dataclasses import dataclass

from thalweg.interfaces import GrammarCounts, StepKind, StepStats


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """What usage and utilisation are measured against."""

    max_num_seqs: int
    num_blocks: int
    """The null block included."""
    num_state_slots: int
    """The null slot included."""
    num_devices: int = 1
    """Devices that share the work of this engine's rows."""
    peak_tflops: float | None = None
    """Dense FP8 peak of one device, which is twice its BF16 peak; None = unknown, no utilisation."""

    def kv_usage(self, stats: StepStats) -> float:
        """Used part of the cache blocks, from 0 to 1."""
        return 1 - stats.num_free_blocks / (self.num_blocks - 1)

    def state_usage(self, stats: StepStats) -> float:
        """Used part of the state slots, from 0 to 1."""
        return 1 - stats.num_free_state_slots / (self.num_state_slots - 1)


@dataclass(frozen=True, slots=True)
class Speed:
    """Steps and tokens per second: of the newest step, and over the window up to now."""

    current_steps: float | None
    average_steps: float | None
    current_tokens: float | None
    """Output tokens of the newest step over its time."""
    prompt_tokens: float | None
    output_tokens: float | None


@dataclass(frozen=True, slots=True)
class Speculation:
    """How drafts fared in the decode steps of the window."""

    num_verified: int
    """Draft tokens that were verified."""
    num_accepted: int
    accepted_by_position: tuple[float, ...]
    """Accepted part of the drafts verified at each position, the first draft first."""
    mean_verify_length: float | None
    """Query tokens per decode row."""
    mean_accepted_length: float | None
    """Tokens per decode row and step, the target's own included."""
    confidence_error: float | None
    """Mean distance between a draft's confidence and how likely its acceptance was."""

    @property
    def acceptance(self) -> float | None:
        return self.num_accepted / self.num_verified if self.num_verified else None


@dataclass(frozen=True, slots=True)
class Load:
    """Queues and memory as the newest plan found them; fractions are from 0 to 1, null ids do not count."""

    num_running: int
    num_pending: int
    """Waiting, or ready to decode without a place in the batch."""
    num_chunked: int
    """Waiting with a part of the prompt computed."""
    batch_fill: float | None
    kv_usage: float | None
    state_usage: float | None
    mean_prompt_running: float | None
    mean_prompt_waiting: float | None
    mean_prompt_chunked: float | None


@dataclass(frozen=True, slots=True)
class Endings:
    """Requests that ended: running totals, and mean lengths of those that left in the window."""

    num_finished: int
    """Ran and left, however they ended."""
    num_preempted: int
    num_aborted: int
    mean_output: float | None
    mean_prompt: float | None


@dataclass(frozen=True, slots=True)
class Timing:
    """Milliseconds of one part of a step: of the newest step, and over the window."""

    name: str
    current_ms: float
    mean_ms: float
    max_ms: float
    num_calls: int
    share: float | None
    """Part of the time of all steps; beyond 1 in sum where parts overlap."""


@dataclass(frozen=True, slots=True)
class Figures:
    """Everything the periodic line shows."""

    step: int
    kind: StepKind
    speed: Speed
    speculation: Speculation
    load: Load
    endings: Endings
    prefill_share: float | None
    """Part of the window's step time; the rest is decode."""
    max_first_token_ms: float | None
    mean_first_token_ms: float | None
    imbalance: float | None
    """Peak over mean load of the ranks' experts."""
    mfu: float | None
    """FP8-equivalent operations over what the devices could have done; the estimate must be on and the peak known."""
    timings: tuple[Timing, ...]
    grammars: GrammarCounts
    """Totals."""
