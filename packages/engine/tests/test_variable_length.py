"""Verify lengths that vary: the device shares them out anew, and the host waits for nothing else before it samples."""

from typing import Any

import numpy as np
import pytest
from engine_testing.bench import LETTERS, Bench, params
from engine_testing.cores import CORES
from engine_testing.recorder import Recorder

from thalweg.engine.tokenizer import Tokenizer

DRAFTS, SEQUENCES = 3, 4
CURVE = tuple((size, 10.0 + 2.0 * size) for size in range(1, SEQUENCES * (1 + DRAFTS) + 1))


@pytest.fixture(params=CORES)
def core(request: pytest.FixtureRequest) -> Any:
    return request.param


def make_bench(tokenizer: Tokenizer, core: Any, *, is_async: bool) -> Bench:
    bench = Bench(
        tokenizer,
        core=core,
        async_scheduling=is_async,
        draft_length=DRAFTS,
        step_times=CURVE,
        max_num_seqs=SEQUENCES,
    )
    assert bench.drafter is not None
    bench.drafter.is_wrong = lambda sequence, position: (3 * sequence + position) % 5 == 0
    for index in range(SEQUENCES):
        bench.engine.add_request(str(index), "z", params(max_tokens=26))
    return bench


def test_lengths_are_shared_out_by_confidences_that_only_the_device_knows(tokenizer: Tokenizer, core: Any) -> None:
    bench = make_bench(tokenizer, core, is_async=True)
    recorder = Recorder(bench)
    finals = bench.drain()
    assert all(final.outputs[0].text == LETTERS for final in finals.values())
    changed = 0
    for number, correction in recorder.corrections.items():
        planned = recorder.plans[number].query_lengths
        assert correction.query_lengths.sum() == planned.sum()
        assert planned.size == 0 or 1 <= correction.query_lengths.min() <= correction.query_lengths.max() <= 1 + DRAFTS
        changed += not np.array_equal(correction.query_lengths, planned)
    assert changed


def test_the_host_waits_for_the_lengths_and_not_for_the_forward_pass(tokenizer: Tokenizer, core: Any) -> None:
    bench = make_bench(tokenizer, core, is_async=True)
    recorder = Recorder(bench)
    bench.model.on_forward = lambda number: recorder.wait_for(f"sample {number}") if 2 <= number <= 4 else None
    for _ in range(2):
        bench.step()
    assert "wait for lengths of 1" not in recorder.take()
    for number in range(2, 5):
        bench.step()
        waits = [event for event in recorder.take() if event.startswith("wait")]
        assert waits == [f"wait for results of {number - 1}", f"wait for lengths of {number}"]
    assert bench.engine.failure is None


def test_a_synchronous_engine_takes_the_planned_lengths(tokenizer: Tokenizer, core: Any) -> None:
    bench = make_bench(tokenizer, core, is_async=False)
    recorder = Recorder(bench)
    finals = bench.drain()
    assert all(final.outputs[0].text == LETTERS for final in finals.values())
    assert any(np.ptp(plan.query_lengths) for plan in recorder.plans.values() if plan.query_lengths.size)
    assert not recorder.corrections
