"""The command thalweg-eplb: its tables, files and pictures, and one line for every error."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from thalweg.eplb import (
    Placement,
    imbalance,
    plan,
    rank_loads,
    read_history,
    read_placement,
    write_history,
    write_placement,
)
from thalweg.eplb.cli import main
from thalweg.interfaces import ConfigError

Run = Callable[..., str]


@pytest.fixture
def history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> np.ndarray:
    """Loads of two layers and sixteen experts, also in history.npz of the working directory."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    counts = rng.poisson(rng.gamma(0.5, 100.0, (1, 2, 16)), (20, 2, 16)).astype(np.uint16)
    write_history("history.npz", counts)
    return counts


@pytest.fixture
def run(history: np.ndarray, capsys: pytest.CaptureFixture[str]) -> Run:
    def run_command(*arguments: str) -> str:
        status = main(arguments)
        captured = capsys.readouterr()
        assert (status, captured.err) == (0, "")
        return captured.out

    return run_command


def lines(table: str) -> list[list[str]]:
    return [line.split() for line in table.splitlines()]


def test_plan_prints_every_layer_and_writes_the_placement(run: Run, history: np.ndarray) -> None:
    table = run("plan", "history.npz", "--ranks", "4", "--planner", "reference", "--output", "plan.npz")
    placement = read_placement("plan.npz")
    assert placement.equals(plan(history, 20, 4, planner="reference"))
    header, first, second, total, note = lines(table)
    assert " ".join(header) == "layer imbalance after moved slots"
    assert [first[0], second[0], total[0]] == ["0", "1", "all"]
    before = imbalance(rank_loads(history, Placement.initial(2, 16, 20, 4)))
    assert total[1:3] == [f"{before:.4f}", f"{imbalance(rank_loads(history, placement)):.4f}"]
    assert int(total[3]) == int(first[3]) + int(second[3]) > 0
    assert " ".join(note).startswith("16 experts in 20 slots of 4 ranks; reference, ")


def test_a_current_placement_says_the_sizes_itself(run: Run) -> None:
    run("plan", "history.npz", "--ranks", "4", "--redundant", "8", "--planner", "reference", "--output", "plan.npz")
    again = lines(run("plan", "history.npz", "--current", "plan.npz", "--planner", "reference"))
    assert again[3][3] == "0"  # the same plan moves nothing
    assert " ".join(again[4]).startswith("16 experts in 24 slots of 4 ranks")


def test_compare_scores_planners_on_steps_they_did_not_see(run: Run, history: np.ndarray) -> None:
    table = run("compare", "history.npz", "--ranks", "4", "--plan-steps", "5", "--planners", "reference,static")
    header, reference, static = lines(table)
    assert " ".join(header) == "imbalance, planned on scored on moved slots seconds"
    placement = plan(history[:5], 20, 4, planner="reference")
    scores = [imbalance(rank_loads(part, placement)) for part in (history[:5], history[5:])]
    assert reference[:3] == ["reference", *(f"{score:.4f}" for score in scores)]
    assert static[0] == "static"
    assert static[3] == "0"


@pytest.mark.parametrize("suffix", [".png", ".svg"])
def test_plot_draws_the_loads_before_and_after(run: Run, suffix: str) -> None:
    pytest.importorskip("matplotlib")
    run("plan", "history.npz", "--ranks", "4", "--planner", "reference", "--output", "plan.npz")
    assert run("plot", "history.npz", "--ranks", "4", "--after", "plan.npz", "--output", f"loads{suffix}") == ""
    assert Path(f"loads{suffix}").read_bytes()[:5] in (b"\x89PNG\r", b"<?xml")


ERRORS = [
    ("plan missing.npz --ranks 4", "missing.npz: No such file or directory"),
    ("plan history.npz", "--ranks is missing; it is needed without --current"),
    ("plan history.npz --ranks 0", "--ranks is 0; it must be an integer in 1..65536"),
    ("plan history.npz --ranks 4 --redundant -1", "--redundant is -1; it must be an integer in 0..65536"),
    ("plan history.npz --ranks -1", "--ranks is -1; it must be an integer in 1..65536"),
    ("plan history.npz --ranks 100000000000", "--ranks is 100000000000; it must be an integer in 1..65536"),
    ("plan history.npz --ranks 65536", "num_slots is 131072; it must be an integer in 1..65536"),
    ("plan history.npz --ranks 4 --output /nope/x", "--output /nope/x cannot be written: No such file or directory"),
    ("plan history.npz --ranks 4 --output .", "--output . cannot be written: Is a directory"),
    ("plot history.npz --ranks 4 --after plan.npz --output /nope/x.png", "--output /nope/x.png cannot be written"),
    ("plan history.npz --current plan.npz --ranks 4", "--ranks and --redundant do not go with --current"),
    ("plan plan.npz --ranks 4", "plan.npz holds no tokens_per_expert; it has logical_of_physical"),
    ("plan text.npz --ranks 4", "text.npz cannot be read as npz"),
    ("plan array.npy --ranks 4", "array.npy cannot be read as npz"),
    ("plan negative.npz --ranks 4", "negative.npz: history holds the count -1"),
    ("plan history.npz --current history.npz", "history.npz holds no logical_of_physical"),
    ("plan history.npz --current other.npz", "other.npz places (layers, experts) (1, 8); the history has (2, 16)"),
    ("plan history.npz --current mixed.npz", "mixed.npz: physical_of_logical is not the inverse"),
    ("compare history.npz --ranks 4 --plan-steps 20", "20 of 20 steps to plan on; some must be left to score"),
    ("compare history.npz --ranks 4 --planners best", "planner is 'best'; it must be one of greedy"),
    ("plot history.npz --ranks 4 --after plan.npz --output loads.txt", "loads.txt should end in one of"),
]


@pytest.mark.parametrize(("command", "message"), ERRORS, ids=[command for command, _ in ERRORS])
def test_errors_are_one_line(
    command: str, message: str, history: np.ndarray, capsys: pytest.CaptureFixture[str]
) -> None:
    placement, other = Placement.initial(2, 16, 20, 4), Placement.initial(1, 8, 8, 4)
    write_placement("plan.npz", placement)
    write_placement("other.npz", other)
    tables = (placement.logical_of_physical[:, ::-1], placement.physical_of_logical)
    np.savez("mixed.npz", logical_of_physical=tables[0], physical_of_logical=tables[1], num_ranks=4)
    np.savez("negative.npz", tokens_per_expert=np.full((1, 1, 8), -1))
    np.save("array.npy", history)
    Path("text.npz").write_text("no archive")
    if "plot" in command:
        pytest.importorskip("matplotlib")
    assert main(command.split()) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(f"thalweg-eplb: {message}")
    assert captured.err.count("\n") == 1


def test_an_output_that_is_refused_later_leaves_the_file_as_it_was(history: np.ndarray) -> None:
    Path("kept.npz").write_text("kept")
    for output in ("kept.npz", "new.npz"):
        assert main(["plan", "missing.npz", "--ranks", "4", "--output", output]) == 2
    assert Path("kept.npz").read_text() == "kept"
    assert not Path("new.npz").exists()


def test_files_give_back_what_was_written(history: np.ndarray) -> None:
    np.testing.assert_array_equal(read_history("history.npz"), history)
    assert read_history("history.npz").dtype == history.dtype
    placement = plan(history, 24, 4, planner="reference")  # copies are not in the order of slots
    write_placement("placement", placement)
    assert read_placement("placement").equals(placement)
    with pytest.raises(ConfigError, match="history holds the count -1"):
        write_history("bad.npz", np.full((1, 1, 1), -1))
    assert not Path("bad.npz").exists()
