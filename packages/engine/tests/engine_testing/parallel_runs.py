"""Random requests of several outputs, and the same as requests of one output each, on engines of many kinds."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from engine_testing.bench import EOS, Bench, params
from engine_testing.cores import reference_core

from thalweg.engine.sampling_config import SamplingConfig
from thalweg.engine.tokenizer import Tokenizer
from thalweg.interfaces import CompletionOutput, RequestOutput
from thalweg.scheduler import Scheduler

ROOMY = {"num_blocks": 200, "num_state_slots": 20, "max_num_seqs": 8}
CURVE = ((1, 10.0), (4, 11.0), (64, 40.0))


@dataclass(slots=True)
class ParallelCase:
    """A workload and an engine for it, drawn from a seed.

    Verification is coupled, so nothing but the seed of an output decides its tokens: neither preemption nor what it
    shares with others.
    """

    seed: int
    engine: dict[str, Any] = field(default_factory=dict)
    requests: list[tuple[str, list[int], dict[str, Any], int]] = field(default_factory=list)
    """(name, prompt, parameters, steps before the next one)"""

    def __post_init__(self) -> None:
        generator = np.random.default_rng(self.seed)
        self.engine = _engine(generator)
        for index in range(int(generator.integers(2, 7))):
            prompt = generator.integers(3, 400, int(generator.integers(1, 45))).tolist()
            self.requests.append((f"{index}", prompt, _parameters(generator), int(generator.integers(4))))

    def together(self, tokenizer: Tokenizer) -> dict[str, RequestOutput]:
        """Serve the requests as they are; by name."""
        bench = self._bench(tokenizer, self.engine)
        for name, prompt, values, num_steps in self.requests:
            bench.engine.add_request(name, prompt, params(**values))
            for _ in range(num_steps):
                bench.step()
        return _finals(bench)

    def apart(self, tokenizer: Tokenizer) -> dict[str, list[CompletionOutput]]:
        """Serve every output as a request of its own, where there is room for all."""
        bench = self._bench(tokenizer, self.engine | ROOMY)
        for name, prompt, values, _ in self.requests:
            for index in range(values["n"]):
                alone = values | {"n": 1, "seed": values["seed"] + index}
                bench.engine.add_request(f"{name}.{index}", prompt, params(**alone))
        finals = _finals(bench)
        return {
            name: [finals[f"{name}.{index}"].outputs[0] for index in range(values["n"])]
            for name, _, values, _ in self.requests
        }

    def _bench(self, tokenizer: Tokenizer, options: dict[str, Any]) -> Bench:
        bench = Bench(tokenizer, stage_options={"sampling": SamplingConfig(return_draws=True)}, **options)
        ending = bench.letters[3]
        bench.model.say = lambda token_id: EOS if token_id == ending else token_id
        return bench


def _engine(generator: np.random.Generator) -> dict[str, Any]:
    num_state_slots = int(generator.integers(2, 12))
    draft_length = int(generator.integers(4))
    return {
        "core": Scheduler if generator.random() < 0.7 else reference_core,
        "async_scheduling": bool(generator.integers(2)),
        "num_blocks": int(generator.integers(10, 40)),
        "num_state_slots": num_state_slots,
        "max_num_seqs": min(int(generator.integers(1, 7)), num_state_slots - 1),
        "draft_length": draft_length,
        "step_times": CURVE if draft_length and generator.random() < 0.4 else (),
        "chunked_prefill": bool(generator.integers(2)),
        "max_num_batched_tokens": 64,
        "prefill_interval_all": int(generator.integers(1, 6)),
    }


def _parameters(generator: np.random.Generator) -> dict[str, Any]:
    max_tokens = int(generator.integers(1, 14))
    return {
        "n": int(generator.integers(1, 6)),
        "seed": int(generator.integers(1000)),
        "temperature": float(generator.choice([1.0, 3.0, 8.0])),
        "top_k": int(generator.choice([-1, -1, 3])),
        "max_tokens": max_tokens,
        "min_tokens": int(generator.integers(max_tokens + 1)) if generator.random() < 0.3 else 0,
        "stop": ("cd", "e") if generator.random() < 0.4 else (),
        "bad_words": ("b", "cd") if generator.random() < 0.2 else (),
        "frequency_penalty": float(generator.choice([0.0, 0.7])),
        "repetition_penalty": float(generator.choice([1.0, 1.5])),
        "logprobs": int(generator.integers(3)),
        "prompt_logprobs": 1 if generator.random() < 0.3 else None,
    }


def _finals(bench: Bench) -> dict[str, RequestOutput]:
    """Everything that was served, with nothing left of it in the engine."""
    finals = bench.drain()
    assert not list(bench.engine._table)
    assert not bench.engine._table._by_sequence
    assert not bench.scheduler.debug_state()["sequences"]
    bench.engine.close()
    return finals


def compare(case: ParallelCase, tokenizer: Tokenizer) -> int:
    """Outputs that shared a prompt are those that did not; how many preemptions there were."""
    together, apart = case.together(tokenizer), case.apart(tokenizer)
    for name, prompt, values, _ in case.requests:
        request = together[name]
        assert request.error is None
        known = None if request.prompt_logprobs is None else len(request.prompt_logprobs)
        assert known == (None if values["prompt_logprobs"] is None else len(prompt) - 1)
        for one, alone in zip(request.outputs, apart[name], strict=True):
            assert _facts(one) == _facts(alone), (case.seed, name, one.index)
            assert one.draws is not None
            assert len(one.draws) == len(one.token_ids)
    return sum(request.metrics.num_preemptions for request in together.values())


def _facts(one: CompletionOutput) -> tuple[object, ...]:
    return one.token_ids, one.text, one.logprobs, one.finish_reason, one.stop_reason
