"""An engine whose device step and post-processing take as long as they are told, for measuring what overlaps."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import tokenizers
import torch
from tokenizers import decoders, models

from thalweg.cache import MetadataShape
from thalweg.engine import LLMEngine, Timeline, Tokenizer
from thalweg.engine.admission import Admission, Limits
from thalweg.engine.device import HostCopies, Sampled
from thalweg.engine.inputs import InputBuilder
from thalweg.engine.runner import StreamRunner
from thalweg.engine.token_rows import CompressedVocabulary
from thalweg.interfaces import StepOutcome, StepResult
from thalweg.kernels.backends.cpu import CpuBackend
from thalweg.scheduler import Scheduler, SchedulerConfig

VOCAB_SIZE, NUM_BLOCKS, BLOCK_SIZE, MAX_MODEL_LEN = 16, 257, 128, 4096
TOKEN = 5


class SleepingDevice:
    """thalweg.engine.device.Device whose forward pass is a sleep, and which says the same token for ever."""

    def __init__(self, forward_s: float) -> None:
        self._forward_s = forward_s

    def copy(self, plan: Any) -> None:
        """There is no cache."""

    def prepare(self, inputs: Any, left: Sampled | None, *, redistribute: bool) -> Any:
        return inputs

    def forward(self, prepared: Any) -> Any:
        time.sleep(self._forward_s)
        return prepared

    def sample(self, forwarded: Any, inputs: Any) -> Sampled:
        num_rows = forwarded.query_lengths.size
        tokens = torch.full((num_rows,), TOKEN, dtype=torch.int32)
        none = torch.zeros((num_rows, 0), dtype=torch.int32)
        confidences = torch.zeros((num_rows, 0))
        host = HostCopies(tokens, none, none, confidences, torch.zeros(num_rows, dtype=torch.bool), tokens)
        return Sampled(tokens, torch.zeros_like(tokens), none, confidences, host)

    def close(self) -> None:
        """There is nothing to let go of."""


class SlowScheduler(Scheduler):
    """A scheduler that takes its time to process a result."""

    process_s = 0.0

    def process(self, result: StepResult) -> StepOutcome:
        ends = time.perf_counter() + self.process_s
        outcome = super().process(result)
        time.sleep(max(ends - time.perf_counter(), 0.0))
        return outcome


def build_scripted_engine(
    *, is_async: bool, forward_s: float, process_s: float, num_sequences: int, timeline: Timeline | None = None
) -> LLMEngine:
    """The real step loop, scheduler and CPU backend around a model that is a sleep."""
    config = SchedulerConfig(max_num_seqs=num_sequences, max_model_len=MAX_MODEL_LEN, async_scheduling=is_async)
    scheduler = SlowScheduler(
        config, num_blocks=NUM_BLOCKS, num_state_slots=num_sequences + 2, block_size=BLOCK_SIZE, vocab_size=VOCAB_SIZE
    )
    scheduler.process_s = process_s
    inputs = InputBuilder(MetadataShape(BLOCK_SIZE, 4, 5, (2,)), CompressedVocabulary.none())
    device: Any = SleepingDevice(forward_s)
    words = tokenizers.Tokenizer(models.WordLevel({f"w{index}": index for index in range(VOCAB_SIZE)}, unk_token="w3"))
    words.decoder = decoders.Fuse()
    tokenizer = Tokenizer(words, bos_token_id=0, eos_token_id=1, pad_token_id=2, vocab_size=VOCAB_SIZE)
    return LLMEngine(
        scheduler,
        StreamRunner(CpuBackend(), device, inputs, has_variable_length=False, check_lengths=False, timeline=timeline),
        tokenizer,
        Admission(tokenizer, Limits(VOCAB_SIZE, MAX_MODEL_LEN, BLOCK_SIZE, NUM_BLOCKS), seed=0),
        is_async=is_async,
        timeline=timeline,
    )


def decode(engine: LLMEngine, num_sequences: int, num_steps: int) -> np.ndarray:
    """Seconds of every decode step, from the return of one call of `step` to that of the next."""
    for index in range(num_sequences):
        engine.add_request(str(index), [4] * 8, {"max_tokens": num_steps + 8, "temperature": 0.0, "ignore_eos": True})
    for _ in range(4):  # the prefill, and decode steps until the loop is in its stride
        engine.step()
    ends = [time.perf_counter()]
    for _ in range(num_steps):
        engine.step()
        ends.append(time.perf_counter())
    if engine.failure is not None:
        raise RuntimeError(engine.failure)
    return np.diff(ends)
