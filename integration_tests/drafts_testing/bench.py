"""An engine of real parts around a table, and runs of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import tokenizers
from tokenizers import Regex, decoders, models, pre_tokenizers

from devices import bind_ops, make_backend, on_device
from drafts_testing.device import TableDevice
from drafts_testing.drafters import Choose, Confide, TableDrafter, drawn, even
from drafts_testing.tables import Contexts, Tables
from thalweg.cache import MetadataShape
from thalweg.dspark import StepTimeCurve, ThroughputBudget
from thalweg.engine.admission import Admission, Limits
from thalweg.engine.engine import LLMEngine
from thalweg.engine.grammars import Grammars
from thalweg.engine.inputs import InputBuilder
from thalweg.engine.model_inputs import ModelInputs
from thalweg.engine.runner import StreamRunner
from thalweg.engine.sample_stage import SampleStage
from thalweg.engine.sampling_config import SamplingConfig
from thalweg.engine.statistics import StepRecord
from thalweg.engine.structured_config import StructuredConfig
from thalweg.engine.structured_parts import mask_filler
from thalweg.engine.token_rows import CompressedVocabulary
from thalweg.engine.tokenizer import Tokenizer
from thalweg.engine.upload import Uploader
from thalweg.interfaces import GrammarCompiler, MaskFiller, RequestOutput, SamplingParams, VerifyBudget
from thalweg.kernels import Registry
from thalweg.scheduler import Scheduler, SchedulerConfig, reference

BLOCK, EOS = 8, 1
MAX_STEPS = 20_000

Request = tuple[Sequence[int], SamplingParams]


@dataclass(frozen=True, kw_only=True)
class Setup:
    """One way to serve requests with a model."""

    target: Tables
    drafts: Tables | None = None
    """None: the target's own, a drafter that is right."""
    draft_length: int = 0
    choose: Choose = drawn
    confide: Confide = even
    drafter_type: type[TableDrafter] = TableDrafter
    verification: Literal["rejection", "coupled"] = "rejection"
    draft_positions: Literal["per_step", "absolute"] = "per_step"
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    logprobs_mode: Literal["raw", "processed"] = "raw"
    batch_invariant: bool = False
    registry: Registry | None = None
    """Of kernels; None: that of the backend."""
    is_async: bool = False
    budget: Callable[[], VerifyBudget] | None = None
    """Lengths of the core in Python by this budget."""
    step_times: tuple[tuple[int, float], ...] = ()
    """Lengths by the best throughput, shared out anew on the device where steps overlap."""
    is_timed: bool = False
    """The scheduler is told how long steps take, so lengths depend on this machine, too."""
    is_native: bool = True
    """Steps are planned in C++, unless there is a scripted budget."""
    num_blocks: int | None = None
    num_spaced: int = 0
    """So many tokens, the last ones, are letters with a space before them."""
    tokenizer: Tokenizer | None = None
    """None: one letter per token."""
    compiler: GrammarCompiler | None = None
    """Of grammars; None: there are none."""
    filler: MaskFiller | None = None
    """Fills their masks; None: as engines do."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Of the scheduler."""


class Bench:
    """An engine of one setup, with what happened step by step."""

    def __init__(self, setup: Setup) -> None:
        options: dict[str, Any] = {
            "max_num_seqs": 16,
            "max_model_len": 64,
            "stop_preempted_request": False,
            "async_scheduling": setup.is_async,
        }
        options |= setup.options
        config = SchedulerConfig(**options)
        tables, drafts = setup.target, setup.draft_length
        blocks_per_sequence = -(-config.runtime_length(drafts) // BLOCK)
        num_slots = config.max_num_seqs + 2
        num_blocks = setup.num_blocks or 2 + 2 * config.max_num_seqs * blocks_per_sequence
        self.scheduler = self._core(setup, config)(
            config,
            num_blocks=num_blocks,
            num_state_slots=num_slots,
            block_size=BLOCK,
            vocab_size=tables.vocab_size,
            draft_length=drafts,
        )
        self._set_curve(setup, config)
        self.backend = make_backend()
        ops = bind_ops(self.backend, batch_invariant=setup.batch_invariant, registry=setup.registry)
        upload = Uploader(self.backend)
        shape, vocabulary = MetadataShape(BLOCK, 0, 1, ()), CompressedVocabulary.none()
        self.contexts = Contexts(tables, num_slots, config.runtime_length(drafts))
        self.drafter = None
        if drafts:
            own = tables if setup.drafts is None else setup.drafts
            self.drafter = setup.drafter_type(self.contexts, own, drafts, setup.choose, setup.confide)
        stage = SampleStage(
            self.backend,
            ops,
            upload,
            vocab_size=tables.vocab_size,
            num_draft_slots=config.max_num_seqs + 1,
            num_state_slots=num_slots,
            drafter=on_device(self.drafter),
            verification=setup.verification,
            draft_positions=setup.draft_positions,
            sampling=setup.sampling,
            logprobs_mode=setup.logprobs_mode,
        )
        inputs = ModelInputs(self.backend, ops, upload, shape, blocks_per_sequence + 1, vocabulary, tables.vocab_size)
        runner = StreamRunner(
            self.backend,
            TableDevice(inputs, self.contexts, stage),
            InputBuilder(shape, vocabulary),
            has_variable_length=bool(setup.step_times),
            check_lengths=True,
            filler=setup.filler or mask_filler(StructuredConfig()),
            vocab_size=tables.vocab_size,
        )
        tokenizer = setup.tokenizer or make_tokenizer(tables.vocab_size, setup.num_spaced)
        limits = Limits(tables.vocab_size, config.max_model_len, BLOCK, num_blocks, setup.sampling.token_blacklist)
        self.engine = LLMEngine(
            self.scheduler,
            runner,
            tokenizer,
            Admission(tokenizer, limits, seed=0),
            is_async=setup.is_async,
            step_times=StepTimeCurve(setup.step_times) if setup.is_timed else None,
            return_draws=setup.sampling.return_draws,
            grammars=None if setup.compiler is None else Grammars(lambda: setup.compiler),
        )
        self.records: list[StepRecord] = []

    def keep_records(self) -> None:
        self.engine.statistics.on_step(self.records.append)

    def serve(
        self,
        requests: Iterable[Request],
        arrivals: Mapping[int, int] | None = None,
        *,
        before_step: Callable[[int], None] | None = None,
        see: Callable[[RequestOutput], None] | None = None,
    ) -> list[RequestOutput]:
        """Final outputs in the order of the requests.

        arrivals: the step before which some requests come. before_step: told the number of every step; whatever it does
        must leave the engine able to come to an end. see: told of every output.
        """
        waiting = sorted(enumerate(requests), key=lambda item: (arrivals or {}).get(item[0], 0))
        finals: dict[str, RequestOutput] = {}
        totals = self.engine.statistics.totals
        emitted_before = totals.num_output_tokens
        for step in range(MAX_STEPS):
            while waiting and (arrivals or {}).get(waiting[0][0], 0) <= step:
                number, (prompt, params) = waiting.pop(0)
                self.engine.add_request(str(number), prompt, params)
            if before_step is not None:
                before_step(step)
            for output in self.engine.step():
                assert output.request_id not in finals, "an output after the final one"
                if see is not None:
                    see(output)
                if output.finished:
                    finals[output.request_id] = output
            if not waiting and not self.engine.has_unfinished():
                break
        assert self.engine.failure is None, self.engine.failure
        assert not self.engine.has_unfinished(), "the engine does not come to an end"
        for pool in (self.scheduler.blocks, self.scheduler.state_slots):
            assert pool.num_free == pool.capacity - 1
        emitted = sum(len(said.token_ids) for output in finals.values() for said in output.outputs)
        assert totals.num_output_tokens - emitted_before == emitted
        return [finals[str(number)] for number in range(len(finals))]

    @staticmethod
    def _core(setup: Setup, config: SchedulerConfig) -> Any:
        if setup.budget is None and setup.is_native:
            return Scheduler
        budget = ThroughputBudget() if setup.budget is None else setup.budget()

        def make(*args: Any, **options: Any) -> reference.Scheduler:
            return reference.Scheduler(*args, **options, verify_budget=budget)

        return make

    def _set_curve(self, setup: Setup, config: SchedulerConfig) -> None:
        if setup.step_times:
            self.scheduler.set_step_time_curve(setup.step_times)
        elif setup.budget is not None:
            self.scheduler.set_step_time_curve([(config.max_num_seqs * (1 + setup.draft_length), 1.0)])


def make_tokenizer(vocab_size: int, num_spaced: int = 0) -> Tokenizer:
    """One letter, or one number in brackets, per token; 0 begins, 1 ends, 2 pads.

    num_spaced: so many tokens, the last ones, are the letters from the fourth on once more, after a space.
    """
    names = [chr(ord("a") + token) if token < 26 else f"({token})" for token in range(vocab_size)]
    names[vocab_size - num_spaced :] = [f" {name}" for name in names[3 : 3 + num_spaced]]
    tokenizer = tokenizers.Tokenizer(models.WordLevel({name: token for token, name in enumerate(names)}, names[0]))
    pattern = r"\(\d+\)| [a-z]|." if num_spaced else r"\(\d+\)|."
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(pattern), "isolated")
    tokenizer.decoder = decoders.Fuse()
    return Tokenizer(tokenizer, bos_token_id=0, eos_token_id=EOS, pad_token_id=2, vocab_size=vocab_size)


def serve(setup: Setup, requests: Iterable[Request], arrivals: Mapping[int, int] | None = None) -> list[RequestOutput]:
    """Final outputs of the requests in one setup."""
    bench = Bench(setup)
    with bench.engine:
        return bench.serve(requests, arrivals)
