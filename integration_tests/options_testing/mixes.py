"""Random subsets of all options, each request with its own, together in one batch that is served in a random way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from drafts_testing import drafters
from drafts_testing.bench import BLOCK, Request, Setup, make_tokenizer
from drafts_testing.tables import Memory, Tables
from drafts_testing.workloads import scatter, schedules
from options_testing.modes import plain
from options_testing.runs import Run, differences
from thalweg.engine.sampling_config import SamplingConfig
from thalweg.interfaces import SamplingParams

VOCAB, NUM_SPACED = 24, 4
CHOICES = (
    drafters.drawn,
    drafters.drawn,
    drafters.likeliest,
    drafters.half_right,
    drafters.least_likely,
    drafters.illegal_at_times,
    drafters.overruled,
)
CONFIDENCES = (drafters.even, drafters.random, drafters.exact, drafters.nonsense)
Random = np.random.Generator


@dataclass(frozen=True)
class Mix:
    """Requests that share a batch, and how the batch is served."""

    seed: int
    way: str
    setup: Setup
    requests: list[Request]
    arrivals: dict[int, int]

    def differences(self) -> tuple[Run, dict[int, str]]:
        """The run of the batch; and, by request, what it does not say as if served alone, without drafts, in place."""
        together = Run(self.setup, self.requests, self.arrivals)
        alone = [Run(plain(self.setup), [request]).said[0] for request in self.requests]
        return together, differences(alone, together.said)


def make_mix(seed: int, count: int) -> Mix:
    """A mix of so many requests; successive seeds take the ways to serve in turn."""
    random = np.random.default_rng(seed)
    setup = _setup(random, seed)
    only_greedy = setup.verification == "rejection"
    ways = schedules(setup, lengths_vary=True, preempts=True) | _tight_chunks(setup)
    way = list(ways)[seed % len(ways)]
    requests = [_request(random, only_greedy) for _ in range(count)]
    return Mix(seed, way, ways[way], requests, scatter(count, seed, 12))


def options_of(params: SamplingParams) -> set[str]:
    """The fields that are not at their default."""
    return {field.name for field in fields(params) if getattr(params, field.name) != field.default}


def _setup(random: Random, seed: int) -> Setup:
    """A model, a drafter and options of the engine. Half of the models have many tokens that tie."""
    target = Tables.random(
        VOCAB, seed, Memory.EVERYTHING, spread=float(random.uniform(1, 3)), grain=float(random.choice([0.0, 0.5]))
    )
    return Setup(
        target=target,
        drafts=target.with_noise(seed, 0.5),
        draft_length=int(random.integers(0, 7)),
        choose=CHOICES[random.integers(len(CHOICES))],
        confide=CONFIDENCES[random.integers(len(CONFIDENCES))],
        verification="coupled" if random.random() < 0.8 else "rejection",
        logprobs_mode="raw" if random.random() < 0.5 else "processed",
        sampling=SamplingConfig(
            token_blacklist=tuple(random.choice(VOCAB, 3, replace=False).tolist()) if random.random() < 0.3 else (),
            force_top_k=int(random.integers(2, 12)) if random.random() < 0.3 else 0,
            return_draws=bool(random.random() < 0.5),
        ),
        num_spaced=NUM_SPACED,
    )


def _tight_chunks(setup: Setup) -> dict[str, Setup]:
    """Chunks of prompts that are computed again for lack of memory."""
    options = {
        "max_num_seqs": 4,
        "chunked_prefill": True,
        "max_num_batched_tokens": max(BLOCK, 4 * (1 + setup.draft_length)),
        "prefill_interval_all": 3,
    }
    return {"chunks, recomputed, overlapping": replace(setup, is_async=True, num_blocks=20, options=options)}


def _request(random: Random, only_greedy: bool) -> Request:
    prompt = random.integers(0, VOCAB, int(random.choice([1, 2, 7, 8, 20, 33]))).tolist()
    max_tokens = int(random.choice([2, 9, 20, 28], p=[0.1, 0.2, 0.3, 0.4]))
    is_greedy = only_greedy or random.random() < 0.2
    values: dict[str, Any] = {
        "max_tokens": max_tokens,
        "seed": int(random.integers(2**63)),
        "temperature": 0.0 if is_greedy else float(random.choice([0.3, 0.7, 1.0, 1.5])),
    }
    share = random.choice([0.1, 0.3, 0.7])
    for make in _MAKERS:
        if random.random() < share:
            values |= make(random, max_tokens)
    if is_greedy:
        values.pop("n", None)
    return prompt, SamplingParams(**values)


def _ids(random: Random, most: int) -> list[int]:
    ids: list[int] = random.choice(VOCAB, int(random.integers(1, most + 1)), replace=False).tolist()
    return ids


def _words(random: Random) -> tuple[str, ...]:
    tokenizer = make_tokenizer(VOCAB, NUM_SPACED)
    lengths = random.choice([1, 2, 2, 2, 3], int(random.integers(1, 30)))
    return tuple(tokenizer.decode(random.integers(3, VOCAB - NUM_SPACED, length).tolist()) for length in lengths)


def _forced(random: Random, max_tokens: int) -> dict[str, Any]:
    """Some tokens in a row, some alone; no minimum with it, which it could contradict."""
    forced = np.where(random.random(max_tokens) < 0.4, random.integers(3, VOCAB, max_tokens), -1)
    return {"forced_token_ids": tuple(forced.tolist()), "min_tokens": 0}


_MAKERS: tuple[Callable[[Random, int], dict[str, Any]], ...] = (
    lambda random, _: {"n": int(random.integers(2, 5))},
    lambda random, _: {"top_p": float(random.choice([0.3, 0.8, 0.95]))},
    lambda random, _: {"top_k": int(random.integers(1, 12))},
    lambda random, _: {"min_p": float(random.choice([0.01, 0.1, 0.5]))},
    lambda random, most: {"min_tokens": int(random.integers(0, most + 1))},
    lambda random, _: {"stop": tuple(random.choice(["ge", "k", "d e", "f", "kk"], 2).tolist())},
    lambda random, _: {"stop_token_ids": tuple(_ids(random, 2))},
    lambda random, _: {"ignore_eos": True},
    lambda random, _: {"presence_penalty": float(random.choice([-1.0, 0.5, 2.0]))},
    lambda random, _: {"frequency_penalty": float(random.choice([-0.5, 0.3, 1.0]))},
    lambda random, _: {"repetition_penalty": float(random.choice([0.8, 1.2, 2.0]))},
    lambda random, _: {"logit_bias": {token: float(random.uniform(-5, 5)) for token in _ids(random, 8)}},
    lambda random, _: {"bad_words": _words(random)},
    lambda random, _: {"logprobs": int(random.choice([0, 1, 5, 24]))},
    lambda random, _: {"prompt_logprobs": int(random.choice([0, 1, 5, 24]))},
    _forced,
)
