"""What fails ends with its reason, and nothing else does: one request, a step, the engine, its group."""

from collections.abc import Callable

import numpy as np
import pytest
from engine_testing.bench import Bench, MakeBench, params
from numpy.typing import NDArray

from thalweg.engine.engine import EngineFailedError
from thalweg.engine.instruments import Instruments
from thalweg.engine.outputs import OutputState
from thalweg.engine.tokenizer import Tokenizer
from thalweg.interfaces import InvariantError


def fail_at(number: int) -> Callable[[int], None]:
    def on_forward(reached: int) -> None:
        if reached == number:
            raise RuntimeError("device lost")

    return on_forward


class LoneRank:
    """A group of one."""

    rank, size = 0, 1

    def __init__(self) -> None:
        self.failures: list[str] = []

    def all_reduce_min(self, values: NDArray[np.int32]) -> NDArray[np.int32]:
        return values

    all_reduce_max = all_reduce_min

    def fail(self, reason: str) -> None:
        self.failures.append(reason)


def test_logits_that_are_not_numbers_fail_one_request_only(bench: Bench) -> None:
    broken_letter = bench.letters[20]
    bench.model.broken = lambda token_id: token_id == broken_letter
    bench.engine.add_request("bad", "st", params())
    bench.engine.add_request("good", "z", params())
    finals = bench.drain()
    assert finals["bad"].outputs[0].finish_reason == "error"
    assert "not numbers" in str(finals["bad"].error)
    assert bench.text("bad") == ""
    assert bench.text("good") == "abcdefgh"


def test_a_failed_step_ends_every_request_with_the_reason(bench: Bench) -> None:
    bench.engine.add_request("one", "z", params())
    bench.engine.add_request("two", "z", params())
    bench.model.on_forward = fail_at(2)
    while bench.engine.has_unfinished():
        bench.step()
    assert set(bench.finals) == {"one", "two"}
    for final in bench.finals.values():
        assert final.outputs[0].finish_reason == "error"
        assert final.error is not None
        assert final.error.startswith("the engine failed: LaunchedWorkError: work ")
        assert final.error.endswith("raised RuntimeError: device lost")
        assert final.outputs[0].text == "ab"
    with pytest.raises(EngineFailedError, match="device lost"):
        bench.engine.add_request("three", "z", params())
    assert bench.engine.step() == []


def test_a_request_that_ended_before_the_outputs_of_its_step_failed_has_ended_well(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    token_bytes = Tokenizer.token_bytes

    def without_c(tokenizer: Tokenizer, token_id: int) -> bytes:
        if token_id == bench.letters[2]:
            raise LookupError("no bytes")
        return token_bytes(tokenizer, token_id)

    monkeypatch.setattr(Tokenizer, "token_bytes", without_c)
    bench.engine.add_request("done", "zz", params(max_tokens=2))  # the longer one has the first row
    bench.engine.add_request("hit", "a", params())
    while bench.engine.has_unfinished():
        bench.step()
    assert bench.finals["done"].error is None
    assert bench.text("done") == "ab"
    assert bench.finals["hit"].error == "the engine failed: LookupError: no bytes"


def test_the_group_learns_of_a_failure_whatever_else_goes_wrong(
    make_bench: MakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = LoneRank()
    bench = make_bench(communicator=group)
    bench.engine.add_request("r", "z", params())
    bench.model.on_forward = fail_at(0)

    def fail_again(*_: object, **__: object) -> None:
        raise LookupError("no text either")

    monkeypatch.setattr(OutputState, "finish", fail_again)
    with pytest.raises(LookupError):
        bench.drain()
    (reason,) = group.failures
    assert "device lost" in reason


def test_an_interrupt_is_passed_on_and_ends_the_engine(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    bench.engine.add_request("r", "z", params())
    monkeypatch.setattr(bench.runner, "launch", interrupt)
    with pytest.raises(KeyboardInterrupt):
        bench.step()
    assert [output.outputs[0].finish_reason for output in bench.engine.step()] == ["error"]
    assert not bench.engine.has_unfinished()


def test_what_watches_the_engine_cannot_keep_the_device_open(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def stuck(_: object) -> None:
        raise OSError("stuck")

    monkeypatch.setattr(Instruments, "close", stuck)
    with pytest.raises(OSError, match="stuck"):
        bench.engine.close()
    with pytest.raises(InvariantError, match="closed"):
        _ = bench.runner.device.model  # type: ignore[attr-defined]


def test_a_closed_engine_takes_nothing(bench: Bench) -> None:
    with bench.engine as engine:
        engine.add_request("r", "z", params())
    with pytest.raises(InvariantError, match="closed"):
        bench.backend.stream().launch(lambda: None)
    engine.abort_request("r")
    assert not engine.has_unfinished()
    with pytest.raises(EngineFailedError, match="the engine is closed"):
        engine.add_request("s", "z", params())
    with pytest.raises(EngineFailedError, match="the engine is closed"):
        engine.step()
