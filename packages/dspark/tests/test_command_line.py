"""The command thalweg-dspark: its tables and files, and one line for every error."""

import importlib.metadata
import json
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
from dspark_testing.synthetic import synthetic_records, write_records

from thalweg.dspark import AcceptanceStatistics, StepTimeCurve, read_temperatures, write_acceptance, write_curve
from thalweg.dspark.cli import main

POINTS = [(32, 9.99), (96, 10.795), (192, 11.78), (360, 14.421), (576, 18.838)]
PLAN = "plan --curve curve.json --accept-rate 0.7"
README = Path(__file__).parent.parent / "README.md"
Run = Callable[..., str]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that holds curve.json, records.jsonl and acceptance.json."""
    folder = tmp_path_factory.mktemp("files")
    write_curve(folder / "curve.json", StepTimeCurve(POINTS))
    records = synthetic_records(2000)
    write_records(folder / "records.jsonl", records)
    statistics = AcceptanceStatistics(5)
    statistics.add(records.num_verified, records.num_accepted)
    write_acceptance(folder / "acceptance.json", [statistics])
    return folder


@pytest.fixture
def run(files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a command in a copy of that folder and returns what it prints."""
    shutil.copytree(files, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)

    def run_command(*arguments: str) -> str:
        status = main(arguments)
        captured = capsys.readouterr()
        assert (status, captured.err) == (0, "")
        return captured.out

    return run_command


def columns(table: str) -> list[list[str]]:
    return [line.split() for line in table.splitlines()]


def test_calibrate_prints_every_position_and_the_temperatures(run: Run) -> None:
    output = run("calibrate", "records.jsonl")
    header, *lines = columns(output)
    assert header == ["draft", "rows", "accepted", "temperature", "ECE", "after", "Brier", "after", "AUROC", "after"]
    assert [line[:2] for line in lines[:5]] == [[str(j), "2000"] for j in range(1, 6)]
    assert "records: 2000" in output
    (temperatures,) = [line[1] for line in lines if line and line[0] == "temperatures:"]
    assert [f"{float(number):.3f}" for number in temperatures.split(",")] == [line[3] for line in lines[:5]]


def test_calibrate_writes_what_it_printed_and_draws_it(run: Run, tmp_path: Path) -> None:
    output = run("calibrate", "records.jsonl", "--output", "t.json", "--plot", "t.svg", "--bins", "10")
    fitted = read_temperatures("t.json", 5)
    assert f"temperatures: {','.join(f'{temperature:.6g}' for temperature in fitted)}" in output
    assert json.loads(Path("t.json").read_text())["dataset"] == "records.jsonl"
    assert Path("t.svg").read_text().startswith("<?xml")


def test_calibrate_joins_files_and_takes_a_name_for_them(run: Run) -> None:
    write_records(Path("more.jsonl"), synthetic_records(100, seed=1))
    run("calibrate", "records.jsonl", "more.jsonl", "--output", "t.json", "--dataset", "my traffic")
    value = json.loads(Path("t.json").read_text())
    assert (value["dataset"], value["num_samples"]) == ("my traffic", 2100)
    run("calibrate", "records.jsonl", "more.jsonl", "--output", "t.json")
    assert json.loads(Path("t.json").read_text())["dataset"] == "records.jsonl, more.jsonl"


def test_calibrate_shows_a_dash_where_nothing_is_known(run: Run) -> None:
    header = '{"format": "thalweg-confidence-records", "version": 1, "draft_length": 2}\n'
    Path("one.jsonl").write_text(f"{header}[[0.5], 1]\n")
    table = columns(run("calibrate", "one.jsonl"))
    assert table[1][:6] == ["1", "1", "100.0%", "1.000", "0.5000", "0.5000"]
    assert table[2][:10] == ["2", "0", "-", "1.000", *["-"] * 6]


def test_plan_prints_the_published_table(run: Run) -> None:
    requests = ["--accept-rate", "0.7", "--concentration", "4.5", "--concurrency", "16,32,60,96"]
    output = run("plan", "--curve", "curve.json", "--interpolate", *requests)
    table = columns(output)[1:]
    assert [line[0] for line in table] == ["16", "32", "60", "96"]
    gains = [float(line[3].rstrip("%")) for line in table]
    assert gains == pytest.approx([0.5, 1.1, 5.5, 14.5], abs=1.0)
    assert float(table[2][4]) == pytest.approx(3.58, abs=0.2)
    assert [line[5] for line in table] == ["5"] * 4


def test_the_readme_shows_what_plan_prints(run: Run) -> None:
    _, _, shown = README.read_text().partition("    $ cat curve.json\n")
    curve, command, *table = textwrap.dedent(shown.partition("\n\n")[0]).splitlines()
    Path("curve.json").write_text(curve)
    assert run(*command.split()[2:]).splitlines() == table


def test_plan_takes_records_with_and_without_temperatures_and_counts(run: Run) -> None:
    run("calibrate", "records.jsonl", "--output", "t.json")
    plan = ["plan", "--curve", "curve.json", "--interpolate", "--concurrency", "96", "--batches", "100"]
    raw = columns(run(*plan, "--records", "records.jsonl"))[1]
    fitted = columns(run(*plan, "--records", "records.jsonl", "--temperatures", "t.json"))[1]
    shutil.copy("t.json", "renamed")
    renamed = columns(run(*plan, "--records", "records.jsonl", "--temperatures", "renamed"))[1]
    by_hand = columns(run(*plan, "--records", "records.jsonl", "--temperatures", "1.3,1.7,0.8,1,0.6"))[1]
    counts = columns(run(*plan, "--acceptance", "acceptance.json"))[1]
    assert raw[1] == fitted[1] == by_hand[1]
    assert renamed == fitted
    assert float(fitted[2]) == pytest.approx(float(by_hand[2]), rel=0.005)
    assert raw != fitted
    assert float(counts[1]) == pytest.approx(float(raw[1]), rel=0.02)


def test_plan_without_concurrencies_shows_what_fits_the_curve(run: Run) -> None:
    arguments = ["plan", "--curve", "curve.json", "--accept-rate", "0.7", "--batches", "2"]
    assert [line[0] for line in columns(run(*arguments))[1:]] == ["1", "2", "4", "8", "16", "32", "64", "96"]
    assert [line[0] for line in columns(run(*arguments, "--draft-length", "70"))[1:]] == ["1", "2", "4", "8"]


def test_plan_with_fewer_drafts_uses_the_first_of_the_data(run: Run) -> None:
    for source in ("--records records.jsonl", "--acceptance acceptance.json", "--accept-rate 0.7"):
        output = run(*f"plan --curve curve.json {source} --draft-length 3 --concurrency 8 --batches 2".split())
        assert columns(output)[1][5] == "3"


def test_plan_draws_what_it_printed_and_repeats_itself(run: Run) -> None:
    arguments = [*PLAN.split(), "--concentration", "2", "--seed", "7", "--sampler-ms", "1.5", "--batches", "3"]
    assert run(*arguments, "--plot", "p.png") == run(*arguments)
    assert Path("p.png").read_bytes().startswith(b"\x89PNG")
    assert run(*arguments) != run(*arguments, "--seed", "8")


ERRORS = {
    "calibrate": "thalweg-dspark calibrate: the following arguments are required: RECORDS",
    "calibrate missing.jsonl": "thalweg-dspark: missing.jsonl: No such file or directory",
    "calibrate .": "thalweg-dspark: .: Is a directory",
    "calibrate curve.json": "thalweg-dspark: curve.json holds no confidence records",
    "calibrate records.jsonl --bins 0": "thalweg-dspark: num_bins is 0",
    "calibrate records.jsonl --bins many": "thalweg-dspark calibrate: argument --bins: invalid int value",
    "calibrate records.jsonl --output no/t.json": "thalweg-dspark: no/t.json",
    "calibrate records.jsonl --plot no/t.png": "thalweg-dspark: no/t.png: No such file or directory",
    "calibrate records.jsonl --output ./records.jsonl": "thalweg-dspark: --output is ./records.jsonl, one of the files",
    "calibrate x.png --plot x.png": "thalweg-dspark: --plot is x.png, one of the files of records",
    "calibrate records.jsonl --plot t.txt": "thalweg-dspark: t.txt should end in one of",
    "calibrate records.jsonl --out t.json": "thalweg-dspark: unrecognized arguments: --out t.json",
    "plan --accept-rate 0.7": "thalweg-dspark plan: the following arguments are required: --curve",
    "plan --curve curve.json": "thalweg-dspark plan: one of the arguments --accept-rate --acceptance --records is",
    f"{PLAN} --records records.jsonl": "thalweg-dspark plan: argument --records: not allowed with argument",
    "plan --curve records.jsonl --accept-rate 0.7": "thalweg-dspark: records.jsonl is not JSON: Extra data",
    "plan --curve acceptance.json --accept-rate 0.7": "thalweg-dspark: acceptance.json: the curve is {",
    "plan --curve curve.json --acceptance curve.json": "thalweg-dspark: curve.json: it is [[32, 9.99]",
    "plan --curve curve.json --records acceptance.json": "thalweg-dspark: acceptance.json holds no confidence records",
    "plan --curve curve.json --accept-rate 1.7": "thalweg-dspark: accept_rate is 1.7; a number from 0 to 1",
    "plan --curve curve.json --accept-rate nan": "thalweg-dspark: accept_rate is nan",
    f"{PLAN} --concentration 0": "thalweg-dspark: concentration is 0.0",
    f"{PLAN} --temperatures 1": "thalweg-dspark: --temperatures goes with --records",
    "plan --curve curve.json --acceptance acceptance.json --concentration 4": "thalweg-dspark: --concentration goes",
    "plan --curve curve.json --records records.jsonl --temperatures 1,1": "thalweg-dspark: there are 2 temperatures",
    "plan --curve curve.json --records records.jsonl --temperatures x.json": "thalweg-dspark: x.json: No such file",
    "plan --curve curve.json --records records.jsonl --draft-length 6": "thalweg-dspark: draft_length is 6",
    f"{PLAN} --draft-length 0": "thalweg-dspark: draft_length is 0",
    f"{PLAN} --draft-length 576": "thalweg-dspark: the curve ends at 576 query tokens; one sequence needs 577",
    f"{PLAN} --concurrency 97": "thalweg-dspark: the curve ends at 576 query tokens; 97 sequences",
    f"{PLAN} --concurrency 0": "thalweg-dspark: concurrencies[0] is 0",
    f"{PLAN} --concurrency 1,,2": "thalweg-dspark: --concurrency is '1,,2'",
    f"{PLAN} --batches 0": "thalweg-dspark: num_batches is 0",
    f"{PLAN} --seed -1": "thalweg-dspark: seed is -1",
    f"{PLAN} --sampler-ms inf": "thalweg-dspark: sampler_ms is inf",
    f"{PLAN} --plot .": "thalweg-dspark: . should end in one of",
    "": "thalweg-dspark: the following arguments are required: COMMAND",
    "fit": "thalweg-dspark: argument COMMAND: invalid choice: 'fit'",
}


@pytest.mark.parametrize("arguments", ERRORS)
def test_an_error_is_one_line_and_status_two(run: Run, arguments: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        status: object = main(arguments.split())
    except SystemExit as stop:
        status = stop.code
    captured = capsys.readouterr()
    assert status == 2
    assert captured.err.startswith(ERRORS[arguments])
    assert captured.err.count("\n") == 1


@pytest.mark.usefixtures("run")
def test_a_reader_that_leaves_is_no_error() -> None:
    command = [sys.executable, "-m", "thalweg.dspark.cli", "calibrate", "records.jsonl"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    assert (process.wait(timeout=60), process.stderr.read()) == (0, "")
    process.stderr.close()


@pytest.mark.usefixtures("run")
def test_a_disk_without_room_for_the_output_is_an_error() -> None:
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "thalweg.dspark.cli", "calibrate", "records.jsonl"]
        result = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
    assert (result.returncode, result.stderr) == (2, "thalweg-dspark: standard output: No space left on device\n")


def test_the_command_is_installed_under_its_name() -> None:
    (entry,) = importlib.metadata.entry_points(group="console_scripts", name="thalweg-dspark")
    assert entry.load() is main


def test_a_table_is_printed_even_if_its_file_cannot_be_written(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["calibrate", "records.jsonl", "--output", "no/t.json"]) == 2
    captured = capsys.readouterr()
    assert "temperatures: 1.3" in captured.out
    assert captured.err == "thalweg-dspark: no/t.json: No such file or directory\n"


def test_help_and_version_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["--help"], ["--version"], ["calibrate", "--help"], ["plan", "--help"]):
        with pytest.raises(SystemExit) as stop:
            main(arguments)
        assert stop.value.code == 0
    assert "thalweg-dspark" in capsys.readouterr().out
