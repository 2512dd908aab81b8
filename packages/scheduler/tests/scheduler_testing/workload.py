"""Random small workloads: options that make memory short, requests, and how often what befalls them."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

from scheduler_testing.oracle import VOCAB_SIZE, Stream

from thalweg.scheduler.config import SchedulerConfig
from thalweg.scheduler.flops import FlopsLayer, FlopsModel

FLOPS_MODEL = FlopsModel(
    hidden_size=64,
    vocab_size=VOCAB_SIZE,
    num_heads=4,
    head_dim=16,
    query_rank=32,
    output_rank=16,
    output_groups=2,
    window_size=8,
    expert_size=32,
    experts_per_token=2,
    shared_experts=1,
    routed_experts=8,
    layers=(FlopsLayer(), FlopsLayer(compress_ratio=4, is_kv_source=True)),
    first_consumer_layer=1,
    replay="compact",
    replay_keep_tokens=12,
)


Curve = list[tuple[int, float]]
"""Graph size in query tokens and milliseconds, ascending."""


@dataclass
class Arrival:
    """One request, where and when it comes, and what it wants."""

    step: int
    rank: int
    key: str
    prompt_length: int
    max_tokens: int
    ignore_eos: bool
    checkpoints: list[int]
    delay: int
    """Steps until its data has arrived and it may be planned."""
    is_structured: bool
    fails_at: int | None
    """Output length at which its grammar gives up."""
    loaded: tuple[int, int] | None
    """(output tokens it brings, computed tokens of the cache it brings); None = an ordinary request."""


@dataclass
class Chances:
    """How likely things are, per step and rank."""

    abort: float = 0.0
    """At each of the points of a step where an abort can come."""
    fork: float = 0.0
    pin: float = 0.0
    hold: float = 0.0
    misuse: float = 0.0
    late_release: float = 0.0
    no_confidences: float = 0.0
    """A decode step whose drafter does not know how sure it is."""
    odd_peers: float = 0.0
    """Made-up peers vote differently; only for a single rank."""


@dataclass
class Workload:
    seed: int
    config: SchedulerConfig
    sizes: dict[str, Any]
    num_ranks: int
    arrivals: list[Arrival]
    chances: Chances
    eos_period: int
    curves: dict[int, Curve]
    """From which step on verify lengths vary, and how long steps take then."""
    flops_model: FlopsModel | None

    @property
    def is_prompt_engine(self) -> bool:
        return self.config.engine_type == "prompt"

    @property
    def is_default(self) -> bool:
        return self.config.policy == "default"

    @property
    def is_async(self) -> bool:
        return self.config.async_scheduling and not self.is_prompt_engine

    @property
    def token_budget(self) -> int:
        assert self.config.max_num_batched_tokens is not None
        return self.config.max_num_batched_tokens

    @property
    def longest_prompt(self) -> int:
        longest = self.config.max_model_len
        return longest if self.config.chunked_prefill else min(longest, self.token_budget)

    @property
    def step_bound(self) -> int:
        """No run may take longer: every prefill of a whole prompt yields a token, and so does every decode row."""
        chunks = 4 + 2 * self.config.max_model_len // self.token_budget
        prefills = sum((arrival.max_tokens + 1) * (chunks + len(arrival.checkpoints)) for arrival in self.arrivals)
        return 200 + 10 * prefills + 20 * max(arrival.step + arrival.delay for arrival in self.arrivals)

    def stream(self, arrival: Arrival) -> Stream:
        return Stream.from_key(f"{self.seed}/{arrival.key}", arrival.prompt_length, self.eos_period)


def make_workload(seed: int, policy: str = "default", **fixed: Any) -> Workload:
    """The workload of a seed. fixed: options of the config to use instead of the drawn ones.

    Under policy "reference" nothing provokes its known leaks, stalls and odd records.
    """
    rng = random.Random(seed)
    is_default = policy == "default"
    engine_type = rng.choice(["normal"] * 6 + ["prompt", "completion"]) if is_default else "normal"
    engine_type = fixed.pop("engine_type", engine_type)
    block_size = rng.choice([4, 4, 8, 16])
    draft_length = min(rng.randint(0, 5) if rng.random() < 0.8 else 0, block_size - 1)
    context_parallel_size = 2 if engine_type != "completion" and rng.random() < 0.2 else 1
    max_num_seqs = rng.choice([1, 2, 4, 6, 6])
    num_blocks = rng.randint(5, 20)
    max_model_len = rng.choice([24, 40, 100])
    chunked = is_default and rng.random() < 0.75
    floor = max(max_num_seqs * (1 + draft_length), block_size, 4, 0 if chunked else max_model_len)
    options: dict[str, Any] = {
        "max_num_seqs": max_num_seqs,
        "max_num_batched_tokens": floor + rng.randint(0, 24),
        "max_model_len": max_model_len,
        "chunked_prefill": chunked,
        "stop_preempted_request": engine_type == "completion" or rng.random() < 0.2,
        "prefill_max_sum_seqlen_k": max_model_len + rng.choice([0, 30, 1000]),
        "lookahead_tokens": rng.choice([0, 0, 0, 3]) if is_default else 0,
        "prefill_interval_all": rng.randint(1, 9),
        "prefill_interval_any": rng.randint(1, 9),
        "prefill_interval_continue": rng.randint(1, 4),
        "async_scheduling": rng.random() < 0.6,
        "engine_type": engine_type,
        "policy": policy,
    }
    config = SchedulerConfig(**(options | fixed))
    sizes = {
        "num_blocks": num_blocks,
        "num_state_slots": rng.choice([2, max_num_seqs + 2, max_num_seqs + 3]),
        "block_size": block_size,
        "draft_length": draft_length,
        "tail_length": rng.choice([1, 3]),
        "vocab_size": VOCAB_SIZE,
        "context_parallel_size": context_parallel_size,
    }
    num_ranks = rng.choice([1, 1, 1, 1, 2, 3]) if is_default else 1
    curve_steps = rng.choice([(), (), (0,), (0,), (0, 8), (5,)]) if draft_length else ()
    longest = min((num_blocks - 1) * block_size, max_model_len)
    return Workload(
        seed=seed,
        config=config,
        sizes=sizes,
        num_ranks=num_ranks,
        arrivals=_arrivals(rng, config, num_ranks, longest),
        chances=_chances(rng, num_ranks) if is_default else Chances(),
        eos_period=rng.choice([0, 12, 40]),
        curves={step: _curve(rng, max_num_seqs, draft_length) for step in curve_steps},
        flops_model=FLOPS_MODEL if rng.random() < 0.2 else None,
    )


def _chances(rng: random.Random, num_ranks: int) -> Chances:
    return Chances(
        abort=rng.choice([0.0, 0.01, 0.08]),
        fork=rng.choice([0.0, 0.0, 0.05, 0.3]),
        pin=rng.choice([0.0, 0.0, 0.1]),
        hold=rng.choice([0.0, 0.0, 0.2]),
        misuse=rng.choice([0.0, 0.05]),
        late_release=rng.choice([0.0, 0.3]),
        no_confidences=rng.choice([0.0, 0.0, 0.2, 1.0]),
        odd_peers=rng.choice([0.0, 0.0, 0.1]) if num_ranks == 1 else 0.0,
    )


def _curve(rng: random.Random, max_num_seqs: int, draft_length: int) -> Curve:
    """Step times that mostly rise; the largest graph may hold less than all drafts."""
    largest = rng.randint(max_num_seqs, max_num_seqs * (1 + draft_length))
    sizes = sorted({rng.randint(1, largest) for _ in range(rng.randint(0, 5))} | {largest})
    rise = rng.choice([0.0, 0.1, 0.5])
    return [(size, 5.0 + rise * size + rng.choice([0.0, rng.uniform(0.0, 3.0)])) for size in sizes]


def _arrivals(rng: random.Random, config: SchedulerConfig, num_ranks: int, longest: int) -> list[Arrival]:
    uses_grammar = rng.random() < 0.3
    load_rate = rng.choice([0.0, 0.0, 0.4]) if config.policy == "default" else 0.0
    if config.engine_type == "completion":
        load_rate = 1.0
    lonely = rng.random() < 0.3
    """All requests come to rank 0, but for one that comes late to the last rank."""
    count = rng.randint(1, 9)
    arrivals = [_arrival(rng, config, index, longest, uses_grammar, load_rate) for index in range(count)]
    for index, arrival in enumerate(arrivals):
        arrival.rank = 0 if lonely else rng.randrange(num_ranks)
        if lonely and index == count - 1:
            arrival.rank, arrival.step = num_ranks - 1, 10
    return sorted(arrivals, key=lambda arrival: arrival.step)


def _arrival(
    rng: random.Random, config: SchedulerConfig, index: int, longest: int, uses_grammar: bool, load_rate: float
) -> Arrival:
    is_default = config.policy == "default"
    prompt_length = rng.choice([rng.randint(1, longest), *(rng.randint(1, max(1, longest // 3)) for _ in range(4))])
    if rng.random() < 0.08:
        prompt_length = longest + rng.randint(0, 1)
    max_tokens = rng.choice([rng.randint(1, 6), rng.randint(6, 24)]) + (config.engine_type == "completion")
    is_structured = uses_grammar and rng.random() < 0.5
    is_loaded = rng.random() < load_rate
    has_checkpoints = is_default and rng.random() < 0.3
    is_late = is_default and (is_loaded or rng.random() < 0.1)
    return Arrival(
        step=rng.choice([0, rng.randint(0, 12)]),
        rank=0,
        key=str(index),
        prompt_length=prompt_length,
        max_tokens=max_tokens,
        ignore_eos=rng.random() < 0.2,
        checkpoints=sorted({rng.randint(1, prompt_length + 4) for _ in range(3)}) if has_checkpoints else [],
        delay=rng.randint(0, 5) if is_late else 0,
        is_structured=is_structured,
        fails_at=rng.randint(0, 12) if is_structured and is_default and rng.random() < 0.4 else None,
        loaded=_load(rng, config.engine_type, prompt_length, max_tokens) if is_loaded else None,
    )


def _load(rng: random.Random, engine_type: str, prompt_length: int, max_tokens: int) -> tuple[int, int] | None:
    """Output and computed tokens: ready to decode, or somewhere inside the prompt or the output."""
    num_output = min(rng.randint(1, 4), max_tokens - 1) if engine_type != "prompt" else 0
    if engine_type == "completion" or (num_output and rng.random() < 0.5):
        return num_output, prompt_length + num_output - 1
    return num_output, rng.randint(0, max(0, prompt_length + num_output - 2))
