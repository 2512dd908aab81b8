"""Random lives of sequences: prompts in chunks, speculative rounds, forks, recomputation, memory that others left."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import torch

from rollback_testing.bench import Bench
from rollback_testing.cases import random_outcome, random_text
from rollback_testing.history import History, record_histories
from rollback_testing.models import random_bench
from rollback_testing.rounds import Life, check_memory, draft, play_round


def live_through(bench: Bench, histories: Sequence[History], seed: int, steps: int) -> Counter[str]:
    """What happened how often in so many steps; all memory is given back."""
    return _Lives(bench, histories, seed).run(steps)


def check_random_model(seed: int, steps: int, lengths: Sequence[int]) -> Counter[str]:
    """The lives of sequences with texts of these lengths on a model of random shape; what happened how often."""
    bench = random_bench(seed)
    texts = [random_text(seed + place, bench.model.config.vocab_size, length) for place, length in enumerate(lengths)]
    try:
        return live_through(bench, record_histories(bench, texts), seed, steps)
    except Exception as error:
        error.add_note(f"seed {seed}: {bench.draft_length} drafts, {bench.model.config}")
        raise


class _Lives:
    """A few sequences at a time, each of them a piece of one of the histories, on memory that others have left."""

    def __init__(self, bench: Bench, histories: Sequence[History], seed: int, max_lives: int = 6) -> None:
        self._bench = bench
        self._histories = histories
        self._random = np.random.default_rng(seed)
        self._max_lives = max_lives
        self._half_prefilled: list[tuple[Life, int]] = []
        """Sequences whose prompt is not through, with its length."""
        self._running: list[Life] = []
        self.seen: Counter[str] = Counter()

    def run(self, steps: int) -> Counter[str]:
        for _ in range(steps):
            if len(self._half_prefilled) + len(self._running) < self._max_lives and self._random.random() < 0.4:
                self._add()
            if self._half_prefilled and (not self._running or self._random.random() < 0.4):
                self._prefill()
            elif self._running:
                self._decode()
            if self._running and self._random.random() < 0.3:
                self._change()
        for life in [*self._running, *(life for life, _ in self._half_prefilled)]:
            self._bench.free(life.lane)
        return self.seen

    def _add(self) -> None:
        history = self._histories[self._random.integers(len(self._histories))]
        length = int(self._random.integers(1, len(history.text) - 20))
        self._wait(f"sequence {sum(self.seen.values())}", history, length)

    def _wait(self, name: str, history: History, length: int) -> None:
        lane = self._bench.lane(history.text)
        is_async = bool(self._random.random() < 0.5)
        life = Life(name, history, lane, 0, np.random.default_rng(self._random.integers(2**32)), is_async)
        self._half_prefilled.append((life, length))
        self.seen["added"] += 1

    def _prefill(self) -> None:
        chunks = []
        for life, length in self._half_prefilled:
            rest = length - life.cached
            size = rest if self._random.random() < 0.3 else int(self._random.integers(1, rest + 1))
            chunks.append((life.lane, life.cached, life.cached + size))
        logits = self._bench.prefill(chunks)
        for (life, _), (_, _, end), values in zip(self._half_prefilled, chunks, logits, strict=True):
            life.cached = end
            assert torch.equal(values, life.history.logits[end - 1]), f"logits of {life.name} after {end} tokens"
            check_memory(self._bench, life)
        for life in self._running:
            life.flight = None
        done = [life for life, length in self._half_prefilled if life.cached == length]
        self._half_prefilled = [(life, length) for life, length in self._half_prefilled if life.cached < length]
        if done:
            draft(self._bench, done)
        self._running += done
        self.seen["chunks"] += len(chunks)

    def _decode(self) -> None:
        outcomes = [random_outcome(self._random, self._bench.draft_length) for _ in self._running]
        play_round(self._bench, self._running, outcomes)
        self.seen["rounds"] += len(outcomes)
        room = self._bench.draft_length + 3
        for life in [life for life in self._running if life.cached + room > len(life.history.text)]:
            self._end(life)

    def _change(self) -> None:
        life = self._running[self._random.integers(len(self._running))]
        luck = self._random.random()
        if luck < 0.4 and len(self._running) < self._max_lives:
            lane = self._bench.fork(life.lane, life.cached, life.history.text)
            random = np.random.default_rng(self._random.integers(2**32))
            child = Life(f"fork of {life.name}", life.history, lane, life.cached, random, life.is_async)
            self._running.append(child)
            self.seen["forked"] += 1
        elif luck < 0.7:
            self._end(life)
            self._wait(f"{life.name}, recomputed", life.history, life.cached)
            self.seen["preempted"] += 1
        else:
            self._end(life)

    def _end(self, life: Life) -> None:
        self._bench.free(life.lane)
        self._running.remove(life)
        self.seen["ended"] += 1
