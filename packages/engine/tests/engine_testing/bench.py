"""An engine of real parts around a scripted model, and what must hold whenever it is idle."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import torch
from engine_testing.scripted import LETTERS, VOCAB, ScriptedDrafter, ScriptedModel

from thalweg.cache import MetadataShape
from thalweg.dspark import StepTimeCurve
from thalweg.engine.admission import Admission, Limits
from thalweg.engine.engine import LLMEngine
from thalweg.engine.grammars import Grammars
from thalweg.engine.inputs import InputBuilder
from thalweg.engine.model_device import ModelDevice
from thalweg.engine.model_inputs import ModelInputs
from thalweg.engine.runner import StreamRunner
from thalweg.engine.sample_stage import SampleStage, VerificationRule
from thalweg.engine.sampling_config import SamplingConfig
from thalweg.engine.timeline import Timeline
from thalweg.engine.token_rows import CompressedVocabulary
from thalweg.engine.tokenizer import Tokenizer
from thalweg.engine.upload import Uploader
from thalweg.interfaces import Communicator, GrammarCompiler, MaskFiller, RequestOutput, SamplingParams
from thalweg.kernels import bind
from thalweg.kernels.backends.cpu import CpuBackend
from thalweg.scheduler import Scheduler, SchedulerConfig

BLOCK, EOS = 8, 1

__all__ = ["BLOCK", "EOS", "LETTERS", "VOCAB", "Bench", "MakeBench", "params"]


class Bench:
    """Steps an engine and keeps what it returns."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        core: Any = Scheduler,
        num_blocks: int = 41,
        num_state_slots: int = 6,
        draft_length: int = 0,
        step_times: tuple[tuple[int, float], ...] = (),
        verification: VerificationRule = "coupled",
        backend: CpuBackend | None = None,
        timeline: Timeline | None = None,
        communicator: Communicator | None = None,
        stage_options: Mapping[str, Any] | None = None,
        filler: MaskFiller | None = None,
        compiler: GrammarCompiler | None = None,
        **config: object,
    ) -> None:
        options = {"max_num_seqs": 4, "max_model_len": 64, "stop_preempted_request": False} | config
        scheduler_config = SchedulerConfig(**options)  # type: ignore[arg-type]
        self.scheduler = core(
            scheduler_config,
            num_blocks=num_blocks,
            num_state_slots=num_state_slots,
            block_size=BLOCK,
            vocab_size=VOCAB,
            draft_length=draft_length,
        )
        if step_times:
            self.scheduler.set_step_time_curve(step_times)
        self.model = ScriptedModel(tokenizer)
        self._stage_options = {} if stage_options is None else dict(stage_options)
        self.drafter = ScriptedDrafter(self.model, draft_length) if draft_length else None
        self.backend = CpuBackend() if backend is None else backend
        self.runner = StreamRunner(
            self.backend,
            self._device((num_blocks, num_state_slots), draft_length, scheduler_config.max_num_seqs, verification),
            InputBuilder(self._shape(draft_length), CompressedVocabulary.none()),
            has_variable_length=bool(step_times),
            check_lengths=True,
            timeline=timeline,
            filler=filler,
            vocab_size=VOCAB,
        )
        limits = Limits(VOCAB, scheduler_config.max_model_len, BLOCK, num_blocks)
        self.engine = LLMEngine(
            self.scheduler,
            self.runner,
            tokenizer,
            Admission(tokenizer, limits, seed=0),
            is_async=scheduler_config.async_scheduling,
            communicator=communicator,
            timeline=timeline,
            step_times=StepTimeCurve(step_times) if step_times else None,
            return_draws=self._stage_options.get("sampling", SamplingConfig()).return_draws,
            grammars=None if compiler is None else Grammars(lambda: compiler),
        )
        self.finals: dict[str, RequestOutput] = {}
        self.history: list[RequestOutput] = []

    @property
    def letters(self) -> list[int]:
        return self.model.letters

    def step(self) -> list[RequestOutput]:
        outputs = self.engine.step()
        self._keep(outputs)
        return outputs

    def flush(self) -> list[RequestOutput]:
        outputs = self.engine.flush()
        self._keep(outputs)
        return outputs

    def drain(self) -> dict[str, RequestOutput]:
        for _ in range(2000):
            if not self.engine.has_unfinished():
                break
            self.step()
        assert not self.engine.has_unfinished()
        assert self.scheduler.blocks.num_free == self.scheduler.blocks.capacity - 1
        assert self.scheduler.state_slots.num_free == self.scheduler.state_slots.capacity - 1
        return self.finals

    def text(self, request_id: str) -> str:
        return self.finals[request_id].outputs[0].text

    def _keep(self, outputs: list[RequestOutput]) -> None:
        for output in outputs:
            assert output.request_id not in self.finals, "an output after the final one"
            if output.finished:
                self.finals[output.request_id] = output
        self.history += outputs

    def _shape(self, draft_length: int) -> MetadataShape:
        return MetadataShape(BLOCK, 4, 5 + draft_length, (2,))

    def _device(
        self, num_entries: tuple[int, int], draft_length: int, max_num_seqs: int, verification: VerificationRule
    ) -> ModelDevice:
        ops, upload = bind("cpu"), Uploader(self.backend)
        pools: Any = SimpleNamespace(blocks=torch.zeros(num_entries[0], 1), states=torch.zeros(num_entries[1], 1))
        inputs = ModelInputs(
            self.backend, ops, upload, self._shape(draft_length), 64, CompressedVocabulary.none(), VOCAB
        )
        stage = SampleStage(
            self.backend,
            ops,
            upload,
            vocab_size=VOCAB,
            num_draft_slots=1 + max_num_seqs,
            num_state_slots=num_entries[1],
            drafter=self.drafter,
            verification=verification,
            **self._stage_options,
        )
        model: Any = self.model
        return ModelDevice(model, pools, inputs, stage, self.drafter)


def params(**values: object) -> SamplingParams:
    return SamplingParams(**({"max_tokens": 8, "temperature": 0.0} | values))  # type: ignore[arg-type]


MakeBench = Callable[..., Bench]
"""Makes a bench of one core and mode, given its other options."""
