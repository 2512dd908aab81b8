"""Queues the work of steps on the device's stream and fetches their results."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from thalweg.engine.device import Device, Sampled
from thalweg.engine.grammar_masks import GrammarMaskBuilder
from thalweg.engine.inflight import Collected, InflightStep
from thalweg.engine.inputs import InputBuilder
from thalweg.engine.sampler_inputs import SamplerInputs, build_sampler_inputs
from thalweg.engine.sampling_row import SequenceToSample
from thalweg.engine.step_rows import StepRows
from thalweg.engine.timeline import NullTimeline, Timeline
from thalweg.engine.token_counts import SlotOwners
from thalweg.interfaces import Backend, InvariantError, MaskFiller, StepCorrection, StepPlan, StepResult
from thalweg.interfaces.backend import Launched

_LOG = logging.getLogger(__name__)

T = TypeVar("T")


class StreamRunner:
    """Satisfies `thalweg.engine.inflight.Runner` over any device. Waits for events only, and only where it says so.

    has_variable_length: verify lengths of a step in flight are shared out anew on the device. check_lengths: compare
    the device's context lengths with the scheduler's for every live row of an asynchronous step. filler: builds the
    masks of outputs with a grammar; None = there are none. vocab_size: of the logits, for the masks.
    """

    def __init__(
        self,
        backend: Backend,
        device: Device,
        inputs: InputBuilder,
        *,
        has_variable_length: bool = False,
        check_lengths: bool = False,
        timeline: Timeline | None = None,
        filler: MaskFiller | None = None,
        vocab_size: int = 0,
    ) -> None:
        if filler is not None and vocab_size < 1:
            raise InvariantError(f"vocab_size is {vocab_size}; masks need the size of the logits")
        self._backend = backend
        self._stream = backend.stream()
        self._device = device
        self._inputs = inputs
        self._has_variable_length = has_variable_length
        self._check_lengths = check_lengths
        self._timeline = NullTimeline() if timeline is None else timeline
        self._owners = SlotOwners()
        self._masks = GrammarMaskBuilder(backend, filler, vocab_size)
        self._num_compiled = backend.num_compiled

    @property
    def device(self) -> Device:
        return self._device

    def launch(self, plan: StepPlan, previous: InflightStep | None) -> InflightStep:
        """Queue copies, the completion of the inputs, and the forward pass."""
        step = InflightStep(plan, time.perf_counter())
        device = self._device
        with torch.inference_mode(), self._backend.no_host_sync():
            if plan.state_copies.size or plan.block_copies.size or plan.zero_state_slots.size:
                self._launch(step, "copy", lambda: device.copy(plan))
            if not plan.sequence_ids.size:
                return step
            left = _what_is_left(plan, previous)
            redistribute = step.is_redistributed = self._has_variable_length and left is not None
            inputs = self._inputs.build(plan)
            prepared = step.prepared = self._launch(
                step,
                "prepare",
                lambda: device.prepare(inputs, None if left is None else left.value, redistribute=redistribute),
            )
            step.prepared_event = self._stream.record()
            step.forwarded = self._launch(step, "forward", lambda: device.forward(prepared.value))
        return step

    def query_lengths(self, step: InflightStep) -> NDArray[np.int32] | None:
        """[N] lengths that the device shared out; None where the plan's hold."""
        if not step.is_redistributed or step.prepared is None or step.prepared_event is None:
            return None
        step.prepared_event.wait()
        lengths = step.prepared.value.host_query_lengths
        if lengths is None:
            raise InvariantError(f"step {step.plan.step} was to share out its verify lengths, and did not")
        return _ints(lengths)

    def sample(self, step: InflightStep, correction: StepCorrection | None, rows: Sequence[SequenceToSample]) -> None:
        """Queue sampling, and mark the end of the step."""
        step.correction = correction
        forwarded, step.forwarded = step.forwarded, None  # the logits live no longer than the work that reads them
        with torch.inference_mode(), self._backend.no_host_sync():
            if forwarded is not None:
                inputs = build_sampler_inputs(step.plan, rows, correction, self._owners)
                if any(sequence.constraint is not None for sequence in rows):
                    inputs = self._with_masks(step, correction, rows, inputs)
                step.sampled = self._launch(step, "sample", lambda: self._device.sample(forwarded.value, inputs))
            step.sampled_event = self._stream.record()

    def collect(self, step: InflightStep) -> Collected:
        """Wait for the end of the step and fetch its results."""
        if step.sampled_event is None:
            raise InvariantError(f"step {step.plan.step} was not sampled yet")
        step.sampled_event.wait()
        device_s = self._device_seconds(step)
        self._note_compilations(step)
        if step.sampled is None:
            return Collected(_no_rows(step.plan), np.zeros(0, np.bool_), 0.0, 0.0)
        host = step.sampled.value.host
        if self._check_lengths and step.correction is not None:
            check_context_lengths(step.plan, step.correction, _ints(host.context_lengths))
        result = StepResult(
            step=step.plan.step,
            sampled_token_ids=_ints(host.token_ids),
            accepted_token_ids=_ints(host.accepted_ids),
            draft_token_ids=_ints(host.draft_ids),
            confidences=host.confidences.numpy().astype(np.float32, copy=False),
            row_status=_row_status(step),
        )
        collected = Collected(
            result,
            host.broken_rows.numpy(),
            device_s["forward"],
            device_s["sample"],
            sibling_ids=np.zeros(0, np.int32) if host.sibling_ids is None else _ints(host.sibling_ids),
            logprobs=host.logprobs,
            prompt_logprobs=host.prompt_logprobs,
            draws=host.draws,
            starved_rows=None if host.starved_rows is None else host.starved_rows.numpy(),
            grammar_failures=step.grammar_failures,
            mask_s=step.mask_s,
        )
        if host.accept_probs is None or host.draft_faults is None:
            return collected
        illegal_ids, bad_confidences = host.draft_faults.tolist()
        return replace(collected, accept_probs=host.accept_probs.numpy(), draft_faults=(illegal_ids, bad_confidences))

    def close(self) -> None:
        """Finish what is queued, end the backend's threads, and let go of weights and cache."""
        self._backend.close()
        self._device.close()
        self._backend.release_memory()

    def _with_masks(
        self,
        step: InflightStep,
        correction: StepCorrection | None,
        rows: Sequence[SequenceToSample],
        inputs: SamplerInputs,
    ) -> SamplerInputs:
        """Sampler inputs with the masks of the grammars. The step before was collected, so its masks are done with."""
        with self._timeline.span("host", "masks", step=step.plan.step):
            started = time.perf_counter()
            built = self._masks.build(StepRows.of(step.plan, rows, correction), inputs.forced_ids)
            step.mask_s = time.perf_counter() - started
        step.grammar_failures = built.failures
        return replace(inputs, masks=built.masks)

    def _launch(self, step: InflightStep, name: str, work: Callable[[], T]) -> Launched[T]:
        launched = self._stream.launch(work)
        step.timings[name] = launched.timing
        return launched

    def _note_compilations(self, step: InflightStep) -> None:
        """Say so when a step had to wait for kernels to be built."""
        count = self._backend.num_compiled
        if count != self._num_compiled:
            _LOG.info("%d kernels were built or loaded for step %d", count - self._num_compiled, step.plan.step)
            self._num_compiled = count

    def _device_seconds(self, step: InflightStep) -> dict[str, float]:
        """How long the device took for each part of a step that has finished; the timeline is told."""
        spans = {name: timing.span_ns for name, timing in step.timings.items()}
        for name, (started, ended) in spans.items():
            self._timeline.record("device", name, started, ended, step=step.plan.step)
        return {name: (ended - started) / 1e9 for name, (started, ended) in spans.items()}


def check_context_lengths(plan: StepPlan, correction: StepCorrection, device_lengths: NDArray[np.int32]) -> None:
    """Raise InvariantError where the device computed a live row at another position than the scheduler says.

    device_lengths: int32 [N]. It holds committed tokens + verify length on both sides, however they came about.
    """
    wrong = np.flatnonzero((device_lengths != correction.context_lengths) & correction.is_live)
    if wrong.size:
        row = int(wrong[0])
        raise InvariantError(
            f"step {plan.step}, sequence {plan.sequence_ids[row]}: the device's context length is "
            f"{device_lengths[row]}, the scheduler's {correction.context_lengths[row]} (verify length "
            f"{correction.query_lengths[row]}, planned context {plan.context_lengths[row]})"
        )


def _what_is_left(plan: StepPlan, previous: InflightStep | None) -> Launched[Sampled] | None:
    """What the step in flight leaves on the device, if this plan has sequences of it."""
    return previous.sampled if previous is not None and (plan.previous_rows >= 0).any() else None


def _row_status(step: InflightStep) -> NDArray[np.int8] | None:
    """[N] -1 = the scheduler ends the sequence without a token; None = it ends none."""
    if not step.grammar_failures:
        return None
    status = np.zeros(step.plan.sequence_ids.size, np.int8)
    status[list(step.grammar_failures)] = -1
    return status


def _ints(tensor: torch.Tensor) -> NDArray[np.int32]:
    return tensor.numpy().astype(np.int32, copy=False)


def _no_rows(plan: StepPlan) -> StepResult:
    draft_length = plan.draft_token_ids.shape[1]
    nothing = np.zeros((0, draft_length), np.int32)
    return StepResult(plan.step, np.zeros(0, np.int32), nothing, nothing, np.zeros((0, draft_length), np.float32), None)
