"""The sampling stage of the CPU engine by itself: 64 sequences of 129,280 logits, with and without five drafts each.

Everything between the logits and the results on the host is real: the scheduler's plans, the inputs, masks, penalties,
draws, verification, the draws of the next drafts, and the reports. Logits are normal with a deviation of 3, those of
drafts the same with some noise. "grammar" is a mask of half the tokens in every row; what a grammar takes to make it is
not counted. "inputs ms" is the host's part, "where" the share of kernels in the stage. "floor ms" is the time in which
the bytes that no implementation can avoid move at the speed at which this machine copies memory: every logit read once,
masks, token counts of penalised sequences and one kept distribution per sequence read, and, where drafts are verified
by rejection, the distributions of the new ones written. Times are of the processor, one thread.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from report import Row, arguments, publish

from thalweg.engine.constraint import Constraint
from thalweg.engine.device import Prepared, Sampled
from thalweg.engine.grammar_masks import GrammarMaskBuilder
from thalweg.engine.sample_stage import SampleStage
from thalweg.engine.sampler_inputs import SamplerInputs, build_sampler_inputs
from thalweg.engine.sampling_row import SamplingRow, SequenceToSample
from thalweg.engine.step_rows import StepRows
from thalweg.engine.token_counts import SlotOwners
from thalweg.engine.upload import Uploader
from thalweg.interfaces import (
    DraftRows,
    DraftSampler,
    DraftWalk,
    FilledMasks,
    StepKind,
    StepPlan,
    StepResult,
    TargetRows,
)
from thalweg.kernels import bind
from thalweg.kernels.backends.cpu import CpuBackend
from thalweg.model.metadata import ForwardBatch
from thalweg.scheduler import Scheduler, SchedulerConfig
from thalweg.scheduler.vote import plan_step

DRAFTS = 5
PROMPT_TOKENS, OUTPUT_TOKENS = 200, 50
PENALTIES: dict[str, Any] = {"repetition_penalty": 1.1, "presence_penalty": 0.2, "frequency_penalty": 0.1}
REQUESTS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "temperature": {},
    "top-p 0.9": {"top_p": 0.9},
    "top-p, top-k 50, min-p": {"top_p": 0.9, "top_k": 50, "min_p": 0.02},
    "penalties": PENALTIES,
    "top-p, penalties": {"top_p": 0.9, **PENALTIES},
    "top-p, penalties, logprobs 5": {"top_p": 0.9, "num_logprobs": 5, **PENALTIES},
    "greedy, logprobs 5": {"temperature": 0.0, "num_logprobs": 5},
    "greedy, grammar": {"temperature": 0.0, "grammar": True},
    "top-p, grammar": {"top_p": 0.9, "grammar": True},
}
RULES = {"none": "rejection", "rejection": "rejection", "coupled": "coupled"}
"""Verification by drafts."""


@dataclass(frozen=True)
class Sizes:
    """What is sampled, and how often."""

    sequences: int = 64
    vocabulary: int = 129_280
    steps: int = 5
    copied_bytes: int = 1 << 28


class TimedOps:
    """Bound kernel ops, and the seconds that the calls of each took."""

    def __init__(self, ops: Any) -> None:
        self._ops = ops
        self.seconds = Counter[str]()

    def __getattr__(self, name: str) -> Callable[..., Any]:
        op = getattr(self._ops, name)

        def timed(*args: Any, **options: Any) -> Any:
            started = time.thread_time()
            result = op(*args, **options)
            self.seconds[name] += time.thread_time() - started
            return result

        return timed


class KeptMasks:
    """thalweg.interfaces.MaskFiller whose masks, of half the tokens, are made once."""

    def __init__(self, num_rows: int, vocabulary: int) -> None:
        words = np.random.default_rng(3).integers(-(1 << 31), 1 << 31, (num_rows, -(-vocabulary // 32)))
        self._bitmask = words.astype(np.int32)

    def fill(self, walks: Sequence[DraftWalk], bitmask: NDArray[np.int32]) -> FilledMasks:
        bitmask[:] = self._bitmask[: bitmask.shape[0]]
        return FilledMasks(np.ones(bitmask.shape[0], np.bool_), {})


class NoisyDrafter:
    """Drafts from logits that are nearly the target's. The making of logits is a network's work, not the stage's."""

    draft_length = DRAFTS
    target_layer_ids = ()

    def __init__(self, logits: torch.Tensor) -> None:
        self._logits = logits
        self._buffer = torch.empty_like(logits)
        self.network_s = 0.0

    def observe(self, rows: TargetRows) -> None:
        """It knows the logits."""

    def propose(self, rows: DraftRows, sampler: DraftSampler) -> tuple[torch.Tensor, torch.Tensor]:
        drafts = []
        for place in range(DRAFTS):
            started = time.thread_time()
            self._buffer.copy_(self._logits)
            self.network_s += time.thread_time() - started
            drafts.append(sampler.sample(place, self._buffer))
        return torch.stack(drafts, dim=1), torch.full((self._logits.shape[0], DRAFTS), 0.8)


class Sampling:
    """Decode steps of a full batch without a model: its logits are the same in every row and step."""

    def __init__(self, sizes: Sizes, logits: torch.Tensor, row: dict[str, Any], drafts: str) -> None:
        has_drafts = drafts != "none"
        self._logits = logits
        self._num_rows = 1 + DRAFTS * has_drafts
        self._buffer = torch.empty(sizes.sequences * self._num_rows, sizes.vocabulary)
        self._backend = CpuBackend()
        self.ops = TimedOps(bind("cpu"))
        noise = torch.randn(sizes.vocabulary, generator=torch.Generator().manual_seed(2))
        self.drafter = NoisyDrafter(logits + 0.5 * noise) if has_drafts else None
        config = SchedulerConfig(max_num_seqs=sizes.sequences, max_model_len=1024, max_num_batched_tokens=1 << 15)
        num_slots = sizes.sequences + 2
        self._scheduler = Scheduler(
            config,
            num_blocks=2 + 10 * sizes.sequences,
            num_state_slots=num_slots,
            block_size=128,
            vocab_size=sizes.vocabulary,
            draft_length=self._num_rows - 1,
        )
        self._stage = SampleStage(
            self._backend,
            self.ops,
            Uploader(self._backend),
            vocab_size=sizes.vocabulary,
            num_draft_slots=1 + sizes.sequences,
            num_state_slots=num_slots,
            drafter=self.drafter,
            verification=RULES[drafts],  # type: ignore[arg-type]
        )
        self._owners = SlotOwners()
        random = np.random.default_rng(0)
        texts = random.integers(2, sizes.vocabulary, (sizes.sequences, PROMPT_TOKENS + OUTPUT_TOKENS), np.int32)
        self._prompts = texts[:, :PROMPT_TOKENS].tolist()
        self._outputs = texts[:, PROMPT_TOKENS:].tolist()
        options = {name: value for name, value in row.items() if name != "grammar"}
        self._rows = [SamplingRow(**{"temperature": 1.0, "seed": i} | options) for i in range(sizes.sequences)]
        matcher: Any = None  # the filler asks nobody
        self._constraints = [Constraint(matcher) if "grammar" in row else None for _ in self._rows]
        filler = KeptMasks(self._buffer.shape[0], sizes.vocabulary) if "grammar" in row else None
        self._masks = GrammarMaskBuilder(self._backend, filler, sizes.vocabulary)
        self.inputs_s = self.stage_s = 0.0
        self._start(texts)

    def _start(self, texts: np.ndarray) -> None:
        """Prefill: what is output so far counts as prompt for the scheduler, which does not mind."""
        for text in texts:
            self._scheduler.add(text, max_tokens=512, eos_token_id=1, ignore_eos=True)
        while True:
            plan = plan_step(self._scheduler)
            if plan.kind is StepKind.DECODE:
                self._run(plan)
                return
            count = plan.sequence_ids.size
            first, none = np.full(count, 7, np.int32), np.zeros((count, 0), np.int32)
            self._process(plan, StepResult(plan.step, first, none, none, none.astype(np.float32), None))

    def measure(self, steps: int) -> None:
        """Times of these steps alone."""
        self.ops.seconds.clear()
        self.inputs_s = self.stage_s = 0.0
        if self.drafter is not None:
            self.drafter.network_s = 0.0
        for _ in range(steps):
            self._run(plan_step(self._scheduler))
        if self.drafter is not None:
            self.stage_s -= self.drafter.network_s

    def close(self) -> None:
        self._backend.close()

    def _run(self, plan: StepPlan) -> None:
        sequences = [
            SequenceToSample(self._rows[i], i, self._prompts[i], self._outputs[i], constraint=self._constraints[i])
            for i in plan.sequence_ids.tolist()
        ]
        assert len(sequences) == len(self._rows)
        self._buffer.view(len(sequences), self._num_rows, -1).copy_(self._logits[:, None])
        started = time.thread_time()
        inputs = build_sampler_inputs(plan, sequences, None, self._owners)
        self.inputs_s += time.thread_time() - started
        inputs = replace(inputs, masks=self._masks.build(StepRows.of(plan, sequences, None)).masks)
        prepared = _prepared(plan, [self._outputs[index][-1] for index in plan.sequence_ids.tolist()])
        launched = self._backend.stream().launch(lambda: self._sample(prepared, inputs))
        self._backend.stream().record().wait()
        host = launched.value.host
        confidences = host.confidences.numpy().astype(np.float32)
        result = StepResult(
            plan.step, host.token_ids.numpy(), host.accepted_ids.numpy(), host.draft_ids.numpy(), confidences, None
        )
        self._process(plan, result)

    def _sample(self, prepared: Prepared, inputs: SamplerInputs) -> Sampled:
        with torch.inference_mode():
            started = time.thread_time()
            sampled = self._stage.run(prepared, self._buffer, inputs)
            self.stage_s += time.thread_time() - started
        return sampled

    def _process(self, plan: StepPlan, result: StepResult) -> None:
        outcome = self._scheduler.process(result)
        ends = outcome.token_offsets.tolist()
        for row, sequence in enumerate(plan.sequence_ids.tolist()):
            self._outputs[sequence] += outcome.token_ids[ends[row] : ends[row + 1]].tolist()
        self._scheduler.release(plan.step)


def _prepared(plan: StepPlan, newest: list[int]) -> Prepared:
    """The query tokens of a plan: the newest token of every sequence and its drafts."""
    token_ids = torch.from_numpy(
        np.concatenate((np.array(newest)[:, None], plan.draft_token_ids), axis=1).reshape(-1)
    ).long()
    metadata: Any = None
    return Prepared(
        ForwardBatch(token_ids, torch.zeros_like(token_ids), torch.zeros(token_ids.numel(), 0, dtype=torch.int64)),
        metadata,
        torch.from_numpy(plan.query_lengths),
        torch.from_numpy(plan.context_lengths),
        torch.from_numpy(plan.state_slots),
        None,
    )


def bytes_per_second(num_bytes: int) -> float:
    """Read and written by the fastest of five copies."""
    source = torch.ones(num_bytes // 4)
    target = torch.empty_like(source)
    seconds = []
    for _ in range(5):
        started = time.thread_time()
        target.copy_(source)
        seconds.append(time.thread_time() - started)
    return 2 * num_bytes / min(seconds)


def floor_bytes(sizes: Sizes, row: dict[str, Any], drafts: str) -> int:
    """What must be read and written, see the module."""
    rows, is_drawn = sizes.sequences * sizes.vocabulary, row.get("temperature") != 0
    total = 4 * rows * (1 if drafts == "none" else 1 + 2 * DRAFTS)
    if "repetition_penalty" in row:
        total += 5 * rows
    if "grammar" in row:
        total += rows * (1 if drafts == "none" else 1 + DRAFTS) // 8
    if drafts == "rejection" and is_drawn:
        total += 4 * rows * (1 + DRAFTS)
    return total


def rows_of(sizes: Sizes) -> Iterator[Row]:
    speed = bytes_per_second(sizes.copied_bytes)
    logits = 3 * torch.randn(sizes.sequences, sizes.vocabulary, generator=torch.Generator().manual_seed(1))
    for drafts in RULES:
        for name, row in REQUESTS.items():
            sampling = Sampling(sizes, logits, row, drafts)
            sampling.measure(sizes.steps)
            sampling.close()
            stage_ms = 1000 * sampling.stage_s / sizes.steps
            floor_ms = 1000 * floor_bytes(sizes, row, drafts) / speed
            parts = [(seconds / sampling.stage_s, op) for op, seconds in sampling.ops.seconds.items()]
            yield {
                "requests": name,
                "drafts": drafts,
                "GB/s": speed / 1e9,
                "inputs ms": 1000 * sampling.inputs_s / sizes.steps,
                "stage ms": stage_ms,
                "floor ms": floor_ms,
                "stage / floor": stage_ms / floor_ms,
                "where": ", ".join(f"{op} {100 * share:.0f} %" for share, op in sorted(parts)[:-4:-1]),
            }


def main() -> None:
    options = arguments(__doc__ or "").parse_args()
    torch.set_num_threads(1)
    sizes = Sizes(4, 1000, 2, 1 << 20) if options.smoke else Sizes()
    publish(list(rows_of(sizes)), options.json)


if __name__ == "__main__":
    main()
