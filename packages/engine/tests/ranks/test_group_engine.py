"""Engines of several processes that step together: uneven load, late and long prompts, and ranks that go missing."""

import signal
import time
from typing import Any

import pytest
import tokenizers
from rank_testing.launch import Ended, Launcher
from rank_testing.serving import serve_alone, serve_story
from rank_testing.stories import Arrival, Story, late_prompt, long_prompt, uneven

pytestmark = pytest.mark.distributed

INTERVALS = {"prefill_interval_all": 7, "prefill_interval_any": 12, "prefill_interval_continue": 3}
TIMEOUT_S = 2.0
SLACK_S = 2.0
"""What a busy machine may add to what the communicator promises."""


@pytest.fixture(scope="module")
def tokenizer_file(raw_tokenizer: tokenizers.Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    raw_tokenizer.save(str(path))
    return str(path)


def run_story(launcher: Launcher, story: Story, tokenizer_file: str, **options: Any) -> list[dict[str, Any]]:
    """The logs of all ranks, after checking what must hold in every group."""
    launcher.start(serve_story, len(story), story=story, tokenizer=tokenizer_file, **options)
    logs = launcher.results()
    for log in logs[1:]:
        assert log["kinds"] == logs[0]["kinds"], "every rank runs the same kind of step"
        assert log["collectives"] == logs[0]["collectives"], "nobody reduces what others do not"
    for step in logs[0]["collectives"]:
        assert step[0] == ["max", 3]
        assert step[1:] in ([], [["min", 1]], [["min", 1]] * 2)
    for rank, log in enumerate(logs):
        assert len(log["texts"]) == len(story[rank])
        assert not any(log["errors"].values())
        assert log["texts"] == serve_alone(story, rank, tokenizer_file, **options)["texts"]
    return logs


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("is_async", [False, True])
def test_uneven_load_runs_in_step(launcher: Launcher, tokenizer_file: str, size: int, is_async: bool) -> None:
    logs = run_story(launcher, uneven(size), tokenizer_file, async_scheduling=is_async, **INTERVALS)
    assert {"PREFILL", "DECODE"} <= set(logs[-1]["kinds"])  # of the idle rank


@pytest.mark.parametrize("size", [2, 3])
def test_one_late_prompt_of_a_rank_starts_within_its_bound(launcher: Launcher, tokenizer_file: str, size: int) -> None:
    story = late_prompt(size, 20)
    logs = run_story(launcher, story, tokenizer_file, async_scheduling=True, **INTERVALS)
    (started,) = logs[-1]["prefills"][story[-1][0].name(size - 1, 0)]
    assert 20 < started <= 20 + INTERVALS["prefill_interval_any"]
    assert set(logs[-1]["kinds"][20:started]) == {"DECODE"}


def test_a_long_prompt_of_one_rank_goes_on_every_few_decode_steps(launcher: Launcher, tokenizer_file: str) -> None:
    story = long_prompt(2, num_tokens=200)
    logs = run_story(launcher, story, tokenizer_file, async_scheduling=True, **INTERVALS)
    chunks = logs[1]["prefills"][story[1][0].name(1, 0)]
    assert len(chunks) == 7
    step = INTERVALS["prefill_interval_continue"] + 1
    assert chunks == list(range(chunks[0], chunks[0] + 7 * step, step))


def busy(size: int) -> Story:
    """Three requests of every rank, one of them still waiting when something happens."""
    return [[Arrival(0, 5, 400), Arrival(0, 7, 400), Arrival(10, 9, 400)] for _ in range(size)]


def check_failed(survivor: Ended, text: str) -> None:
    """The engine has ended every request with the reason, takes no more, and its process has not succeeded."""
    log = survivor.result
    assert survivor.error == ""
    assert survivor.exit_code == 1
    assert len(log["errors"]) == 3
    for error in log["errors"].values():
        assert error.startswith("the engine failed: PeerDiedError: ")
        assert text in error
    assert log["is_refusing"]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize("is_async", [False, True])
def test_a_rank_that_goes_missing_ends_the_run_of_the_others_with_its_name(
    launcher: Launcher, tokenizer_file: str, number: signal.Signals, is_async: bool
) -> None:
    options = {"timeout_s": TIMEOUT_S, "async_scheduling": is_async, **INTERVALS}
    launcher.start(serve_story, 4, story=busy(4), tokenizer=tokenizer_file, **options)
    launcher.wait_for("running")
    launcher.send(2, number)
    text = "rank 2 died or left" if number == signal.SIGKILL else f"rank 2 did not answer within {TIMEOUT_S:g} s"
    for survivor in launcher.join(0, 1, 3):
        check_failed(survivor, text)
        assert survivor.result["waited"] < TIMEOUT_S + SLACK_S


def test_a_rank_whose_step_fails_ends_the_run_of_the_others_with_the_reason(
    launcher: Launcher, tokenizer_file: str
) -> None:
    started = time.monotonic()
    options = {"timeout_s": 60.0, "breaks_at": 15, "async_scheduling": True, **INTERVALS}
    launcher.start(serve_story, 3, story=busy(3), tokenizer=tokenizer_file, **options)
    first, second, broken = launcher.join()
    assert time.monotonic() - started < 40  # nobody waited for the timeout
    for survivor in (first, second):
        check_failed(survivor, "rank 2 cannot go on: ")
        assert all("the device is lost (group 'data'" in error for error in survivor.result["errors"].values())
    assert broken.exit_code == 1
    assert all("the device is lost" in error for error in broken.result["errors"].values())


def test_the_ranks_of_a_group_that_is_told_of_nothing_end_together(launcher: Launcher, tokenizer_file: str) -> None:
    logs = run_story(launcher, [[], []], tokenizer_file, async_scheduling=True)
    assert logs[0]["kinds"] == ["NOTHING"]
