"""Random traffic for an engine, as a function of one number, and a run of it in either mode."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from async_testing.drafter import OracleDrafter
from devices import engine_options, on_device
from thalweg.engine import EngineConfig, LLMEngine, RequestOutput, SamplingParams, build_engine
from thalweg.model import Model

EOS = 309
"""A token that the random model says often."""
MAX_STEPS = 3000
LACKED_RESOURCES = "insufficient_system_resource"


@dataclass(frozen=True)
class Workload:
    """What happens before which call of `step`."""

    options: dict[str, Any]
    draft_length: int
    accuracy: float
    step_times: tuple[tuple[int, float], ...]
    arrivals: dict[int, list[tuple[str, list[int], SamplingParams]]]
    aborts: dict[int, list[str]]
    flushes: frozenset[int]

    @property
    def aborted(self) -> set[str]:
        return {name for names in self.aborts.values() for name in names}


@dataclass
class Run:
    """What came out, and how often the interesting things happened."""

    finals: dict[str, RequestOutput] = field(default_factory=dict)
    seen: Counter[str] = field(default_factory=Counter)


def make_workload(seed: int, vocab_size: int) -> Workload:
    """A few requests that come, end early, are aborted, and run short of blocks."""
    random = np.random.default_rng(seed)
    draft_length = int(random.choice([0, 0, 1, 3, 5]))
    has_curve = draft_length > 0 and random.random() < 0.4
    is_tight = random.random() < 0.5 and not has_curve
    is_chunked = random.random() < 0.4
    max_num_seqs = int(random.integers(4 if has_curve else 2, 6))
    options = {
        "max_num_seqs": max_num_seqs,
        "max_model_len": int(random.integers(140, 200)),
        "num_blocks": 4 if is_tight else 12,
        "chunked_prefill": is_chunked,
        "max_num_batched_tokens": 128 if is_chunked else None,
        "prefill_interval_all": int(random.choice([1, 3, 70])),
        "prefill_interval_continue": int(random.integers(1, 5)),
        "stop_preempted_request": bool(random.random() < 0.15),
    }
    sizes = range(1, max_num_seqs * (1 + draft_length) + 1)
    names = [f"r{index}" for index in range(int(random.integers(4 if has_curve else 2, 6)))]
    arrivals: dict[int, list[tuple[str, list[int], SamplingParams]]] = {}
    for name in names:
        length = int(random.integers(115, 131) if is_tight or random.random() < 0.2 else random.integers(1, 40))
        prompt = random.integers(5, vocab_size, length).tolist()
        arrival = name, prompt, _make_params(random, vocab_size)
        arrivals.setdefault(int(random.integers(0, 3 if has_curve else 12)), []).append(arrival)
    aborts: dict[int, list[str]] = {}
    for name in names:
        if random.random() < 0.15:
            aborts.setdefault(int(random.integers(1, 25)), []).append(name)
    return Workload(
        options,
        draft_length,
        float(random.choice([0.5, 0.8, 0.95])),
        tuple((size, 10.0 + 2.0 * size) for size in sizes) if has_curve else (),
        arrivals,
        aborts,
        frozenset(random.integers(0, 40, 2).tolist()) if random.random() < 0.3 else frozenset(),
    )


def _make_params(random: np.random.Generator, vocab_size: int) -> SamplingParams:
    max_tokens = int(random.integers(1, 24))
    return SamplingParams(
        temperature=0.0 if random.random() < 0.7 else 1.0,
        seed=int(random.integers(2**32)),
        max_tokens=max_tokens,
        min_tokens=int(random.integers(0, min(6, max_tokens))) if random.random() < 0.3 else 0,
        ignore_eos=bool(random.random() < 0.3),
        stop=tuple(random.choice(["e", "t", "on", "a", "er", "in"], 2).tolist()) if random.random() < 0.4 else (),
        stop_token_ids=tuple(random.integers(5, vocab_size, 12).tolist()) if random.random() < 0.3 else (),
    )


def run(
    workload: Workload,
    checkpoint: str,
    model: Model,
    core: Any,
    *,
    is_async: bool,
    texts: dict[str, RequestOutput] | None = None,
) -> Run:
    """Serve the workload. texts: the outputs to expect; with them the drafts of the workload are used."""
    config = EngineConfig.build(
        environ={},
        model=checkpoint,
        **engine_options(mode="plain", arithmetic="float32"),
        async_scheduling=is_async,
        check_lengths=True,
        verification="coupled",
        variable_length=texts is not None and bool(workload.step_times),
        **workload.options,
    )
    drafter = None
    if texts is not None and workload.draft_length:
        drafter = OracleDrafter(workload.draft_length, workload.accuracy, model.config.vocab_size)
    step_times = workload.step_times if drafter is not None else ()
    parts: Any = {"model": model, "core": core, "drafter": on_device(drafter), "step_times": step_times}
    with build_engine(config, **parts) as engine:
        engine.tokenizer.eos_token_id = EOS
        result = Run()
        _watch(engine, result.seen)
        for step in range(MAX_STEPS):
            for name, prompt, params in workload.arrivals.get(step, ()):
                engine.add_request(name, prompt, params)
                state = engine._table.by_request(name)
                if drafter is not None and state is not None and texts is not None:
                    drafter.expect(state.outputs[0].sequence_id, name, [*prompt, *texts[name].outputs[0].token_ids])
            engine.abort_request(workload.aborts.get(step, []))
            _take(result, engine.step())
            if step in workload.flushes:
                _take(result, engine.flush())
            if step > max(workload.arrivals) and not engine.has_unfinished():
                break
        assert not engine.has_unfinished(), "the engine does not come to an end"
        _assert_nothing_held(engine)
    return result


def compare(workload: Workload, one: Run, other: Run) -> None:
    """Equal outputs, but for requests that were aborted or ran out of memory: of those one continues the other."""
    assert one.finals.keys() == other.finals.keys()
    for name, mine in one.finals.items():
        theirs = other.finals[name]
        assert mine.error is None or LACKED_RESOURCES in str(mine.outputs[0].finish_reason), mine.error
        reasons = {mine.outputs[0].finish_reason, theirs.outputs[0].finish_reason}
        if name in workload.aborted or LACKED_RESOURCES in reasons:
            short, long = sorted((mine.outputs[0].token_ids, theirs.outputs[0].token_ids), key=len)
            assert long[: len(short)] == short, name
        else:
            assert mine.outputs == theirs.outputs, name


def _take(result: Run, outputs: list[RequestOutput]) -> None:
    for output in outputs:
        assert output.request_id not in result.finals, "an output after the final one"
        if output.finished:
            result.finals[output.request_id] = output
            result.seen[f"ended: {output.outputs[0].finish_reason}"] += 1


def _watch(engine: LLMEngine, seen: Counter[str]) -> None:
    """Count what the plans and outcomes of a run show."""

    def count(record: Any) -> None:
        plan, outcome = record.plan, record.outcome
        seen["steps"] += 1
        seen["preempted"] += plan.restarted_ids.size
        seen["chunks"] += int((plan.context_lengths < plan.committed_lengths).sum()) if plan.token_ids.size else 0
        seen["accepted drafts"] += int((outcome.num_accepted - 1).clip(0).sum())
        seen["in flight with the step before"] += int((plan.previous_rows >= 0).sum())
        made = outcome.token_offsets[1:] - outcome.token_offsets[:-1]
        seen["cut in an accepted run"] += int(((outcome.finish_reasons > 0) & (made < outcome.num_accepted)).sum())
        verified = outcome.num_verified
        seen["shared out anew"] += int(((verified > 0) & (verified != plan.query_lengths)).sum())

    engine.statistics.on_step(count)


def _assert_nothing_held(engine: LLMEngine) -> None:
    for pool in (engine.scheduler.blocks, engine.scheduler.state_slots):
        assert pool.num_free == pool.capacity - 1
