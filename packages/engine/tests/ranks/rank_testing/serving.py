"""A rank that runs a whole engine around a scripted model."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

from rank_testing.launch import leave_mark
from rank_testing.recorder import Recorder
from rank_testing.stories import Arrival, Story

sys.path.insert(0, str(Path(__file__).parents[2]))

from engine_testing.bench import Bench, params

from thalweg.engine.communicator import GlooCommunicator
from thalweg.engine.engine import EngineFailedError
from thalweg.engine.tokenizer import Tokenizer
from thalweg.interfaces import StepPlan

MAX_MODEL_LEN = 512
LATE_STEP = 12
"""Step at which ranks of a test about failures are in the middle of their work."""


def serve_story(
    rank: int,
    size: int,
    store: Any,
    story: Story,
    tokenizer: str,
    timeout_s: float = 30.0,
    breaks_at: int = -1,
    **options: Any,
) -> dict[str, Any]:
    """The log of one rank of a group over gloo. breaks_at: the last rank's device is lost in this forward pass."""
    communicator = GlooCommunicator(store, rank, size, timeout_s=timeout_s)
    serving = ServingRank(story, rank, tokenizer, Recorder(communicator), options)
    serving.on_step = lambda number: leave_mark(store, "running") if number == LATE_STEP and rank == 0 else None
    if rank == size - 1 and breaks_at >= 0:
        serving.break_at(breaks_at)
    log = serving.run()
    communicator.close()
    return log


def serve_alone(story: Story, rank: int, tokenizer: str, **options: Any) -> dict[str, Any]:
    """The log of a rank that has nobody to agree with."""
    return ServingRank([story[rank]], 0, tokenizer, None, options, name_of=rank).run()


class ServingRank:
    """Feeds the requests of one rank into an engine, steps it to the end and writes down what happened."""

    def __init__(
        self,
        story: Story,
        rank: int,
        tokenizer: str,
        recorder: Recorder | None,
        options: dict[str, Any],
        name_of: int | None = None,
    ) -> None:
        story = [[Arrival(*arrival) for arrival in arrivals] for arrivals in story]
        self.last_arrival = max((arrival.step for arrivals in story for arrival in arrivals), default=0)
        self.name_of = rank if name_of is None else name_of
        self.waiting = list(enumerate(story[rank]))
        self.recorder = recorder
        self.kinds: list[str] = []
        self.prefills: dict[str, list[int]] = {}
        self.names: dict[int, str] = {}
        self.on_step: Any = lambda number: None
        scheduling = {"max_num_batched_tokens": 32, "max_model_len": MAX_MODEL_LEN, "chunked_prefill": True}
        self.bench = Bench(
            Tokenizer.from_file(tokenizer, bos_token_id=0, eos_token_id=1, pad_token_id=2, vocab_size=512),
            num_blocks=257,
            communicator=recorder,
            **(scheduling | options),
        )
        self._launch = self.bench.runner.launch
        self.bench.runner.launch = self.launch  # type: ignore[method-assign]

    def run(self) -> dict[str, Any]:
        number = 0
        while number <= self.last_arrival or self.bench.engine.has_unfinished():
            self.admit(number)
            self.on_step(number)
            if self.recorder is not None:
                self.recorder.next_step()
            self.kinds.append("NOTHING")
            started = time.monotonic()
            self.bench.step()
            if self.bench.engine.failure is not None:
                return self.log(number) | {"exit_code": 1, "waited": time.monotonic() - started}
            number += 1
            assert number < 1000
        return self.log(number)

    def admit(self, number: int) -> None:
        while self.waiting and self.waiting[0][1].step <= number:
            index, arrival = self.waiting.pop(0)
            name = arrival.name(self.name_of, index)
            prompt = [self.bench.letters[index % 26]] * arrival.prompt_length
            self.bench.engine.add_request(name, prompt, params(max_tokens=arrival.max_tokens, ignore_eos=True))
            self.names[len(self.names)] = name

    def launch(self, plan: StepPlan, previous: Any) -> Any:
        self.kinds[-1] = plan.kind.name
        if self.kinds[-1] == "PREFILL":
            for sequence_id in plan.sequence_ids.tolist():
                self.prefills.setdefault(self.names[sequence_id], []).append(len(self.kinds) - 1)
        return self._launch(plan, previous)

    def break_at(self, number: int) -> None:
        def lose_device(forward: int) -> None:
            if forward == number:
                raise RuntimeError("the device is lost")

        self.bench.model.on_forward = lose_device

    def log(self, num_steps: int) -> dict[str, Any]:
        finals = self.bench.finals
        return {
            "num_steps": num_steps,
            "kinds": self.kinds,
            "prefills": self.prefills,
            "collectives": [] if self.recorder is None else self.recorder.steps,
            "texts": {name: output.outputs[0].text for name, output in finals.items()},
            "errors": {name: output.error for name, output in finals.items()},
            "is_refusing": self._is_refusing(),
        }

    def _is_refusing(self) -> bool:
        try:
            self.bench.engine.add_request("one more", [self.bench.letters[0]], params())
        except EngineFailedError:
            return True
        return False
