"""Random small workloads: options that make memory short, requests, and everything that can happen to them."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from scheduler_testing.sampler import Script

from thalweg.scheduler.config import SchedulerConfig

VOCAB_SIZE = 1000


@dataclass
class Arrival:
    """One request, the step at which it comes, and what it will produce."""

    step: int
    prompt_length: int
    max_tokens: int
    ignore_eos: bool
    checkpoints: list[int]
    schedulable_at: int
    is_structured: bool
    script: Script


@dataclass
class Workload:
    config: SchedulerConfig
    sizes: dict[str, int]
    arrivals: list[Arrival]
    abort_rate: float
    """Chance of an abort at each of the three points of a step where one can come."""
    pin_rate: float
    hold_rate: float
    random: random.Random = field(repr=False)

    @property
    def step_bound(self) -> int:
        """No workload may take longer: every prefill of a whole prompt yields a token, and so does every decode row."""
        budget = self.sizes_budget // 2
        prefills = sum(
            (arrival.max_tokens + 1) * (3 + len(arrival.checkpoints) + self.config.max_model_len // budget)
            for arrival in self.arrivals
        )
        return prefills + 10 * max(arrival.step + 10 for arrival in self.arrivals)

    @property
    def sizes_budget(self) -> int:
        return self.config.max_num_batched_tokens or self.config.max_model_len


def make_workload(seed: int, policy: str = "default") -> Workload:
    """The workload of a seed. Under policy "reference" nothing provokes its known leaks, stalls and odd records."""
    rng = random.Random(seed)
    is_default = policy == "default"
    block_size = rng.choice([4, 4, 8, 16])
    draft_length = rng.choice([0, 0, 1, 3, min(5, block_size - 1)])
    context_parallel_size = rng.choice([1, 1, 1, 2])
    max_num_seqs = rng.choice([1, 4, 8, 8])
    num_blocks = rng.randint(5, 20)
    max_model_len = rng.choice([40, 100, 200])
    chunked = rng.random() < 0.75 if is_default else False
    floor = max(max_num_seqs * (1 + draft_length), block_size, 4, 0 if chunked else max_model_len)
    config = SchedulerConfig(
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=floor + rng.randint(0, 24),
        max_model_len=max_model_len,
        chunked_prefill=chunked,
        stop_preempted_request=rng.random() < 0.2,
        prefill_max_sum_seqlen_k=max_model_len + rng.choice([0, 30, 1000]),
        lookahead_tokens=rng.choice([0, 0, 0, 3]) if is_default else 0,
        prefill_interval_all=rng.randint(1, 9),
        prefill_interval_any=rng.randint(1, 9),
        prefill_interval_continue=rng.randint(1, 4),
        policy=policy,  # type: ignore[arg-type]
    )
    sizes = {
        "num_blocks": num_blocks,
        "num_state_slots": rng.choice([2, max_num_seqs + 2, max_num_seqs + 3]),
        "block_size": block_size,
        "draft_length": draft_length,
        "tail_length": rng.choice([1, 3]),
        "vocab_size": VOCAB_SIZE,
        "context_parallel_size": context_parallel_size,
    }
    longest = min((num_blocks - 1) * block_size, max_model_len)
    uses_grammar = rng.random() < 0.3
    uses_confidences = rng.random() < 0.3
    arrivals = [
        _arrival(rng, longest, draft_length, uses_grammar, uses_confidences, is_default)
        for _ in range(rng.randint(1, 12))
    ]
    return Workload(
        config=config,
        sizes=sizes,
        arrivals=sorted(arrivals, key=lambda arrival: arrival.step),
        abort_rate=rng.choice([0.0, 0.02, 0.15]) if is_default else 0.0,
        pin_rate=rng.choice([0.0, 0.0, 0.1]) if is_default else 0.0,
        hold_rate=rng.choice([0.0, 0.0, 0.2]) if is_default else 0.0,
        random=rng,
    )


def _arrival(
    rng: random.Random, longest: int, draft_length: int, uses_grammar: bool, uses_confidences: bool, is_default: bool
) -> Arrival:
    prompt_length = rng.choice([rng.randint(1, longest), *(rng.randint(1, max(1, longest // 3)) for _ in range(4))])
    if rng.random() < 0.08:
        prompt_length = longest + rng.randint(0, 1)
    step = rng.choice([0, rng.randint(0, 12)])
    is_structured = uses_grammar and rng.random() < 0.5
    script = Script(
        eos_at=rng.choice([None, None, rng.randint(1, 30)]),
        accept=[rng.randint(0, draft_length) for _ in range(3)],
        fails_at=rng.randint(0, 12) if is_structured and is_default and rng.random() < 0.4 else None,
        confidence=rng.random() if uses_confidences else None,
    )
    has_checkpoints = is_default and rng.random() < 0.4
    return Arrival(
        step=step,
        prompt_length=prompt_length,
        max_tokens=rng.choice([rng.randint(1, 6), rng.randint(8, 60), rng.randint(8, 60)]),
        ignore_eos=rng.random() < 0.2,
        checkpoints=sorted({rng.randint(1, prompt_length + 4) for _ in range(3)}) if has_checkpoints else [],
        schedulable_at=step + (rng.randint(1, 6) if rng.random() < 0.1 else 0),
        is_structured=is_structured,
        script=script,
    )
