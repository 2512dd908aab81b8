"""`thalweg generate --trace FILE`: the file shows every step, and a bad path is found before anything runs."""

import json
from pathlib import Path
from typing import Any

import pytest

from thalweg.engine.cli import main
from thalweg.engine.llm import LLM


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> str:
    directory = tmp_path_factory.mktemp("tiny") / "random"
    assert main(["tiny", str(directory), "--seed", "3"]) == 0
    return str(directory)


def generate(checkpoint: str, trace: Path, *options: str) -> int:
    command = ["generate", "--model", checkpoint, "--max-model-len", "256", "--arithmetic", "float32", "--prompt", "x"]
    return main([*command, "--max-tokens", "5", "--ignore-eos", "--trace", str(trace), *options])


def spans(trace: Path, track: str, name: str) -> list[dict[str, Any]]:
    events = json.loads(trace.read_text())["traceEvents"]
    return [event for event in events if event["ph"] == "X" and (event["cat"], event["name"]) == (track, name)]


@pytest.mark.parametrize("mode", ["--async-scheduling", "--no-async-scheduling"])
def test_the_trace_has_every_step_on_host_and_device(checkpoint: str, tmp_path: Path, mode: str) -> None:
    trace = tmp_path / "trace.json"
    trace.write_text("an older file")
    assert generate(checkpoint, trace, mode) == 0
    for track, name in (("device", "forward"), ("device", "sample"), ("host", "launch"), ("host", "process")):
        steps = [event["args"]["step"] for event in spans(trace, track, name)]
        assert steps[:5] == [0, 1, 2, 3, 4], (track, name)
        assert steps == sorted(set(steps))
    by_step = {event["args"]["step"]: event for event in spans(trace, "device", "forward")}
    for event in spans(trace, "host", "process"):
        forward = by_step.get(event["args"]["step"])
        assert forward is None or event["ts"] >= forward["ts"] + forward["dur"]  # nothing is processed before it ran


def test_the_host_of_an_asynchronous_run_works_while_the_device_does(checkpoint: str, tmp_path: Path) -> None:
    assert generate(checkpoint, tmp_path / "trace.json", "--async-scheduling") == 0
    launches = {event["args"]["step"]: event["ts"] for event in spans(tmp_path / "trace.json", "host", "launch")}
    processed = {event["args"]["step"]: event["ts"] for event in spans(tmp_path / "trace.json", "host", "process")}
    for step in (2, 3, 4):
        assert launches[step] < processed[step - 1] < processed[step]


def test_a_run_that_fails_leaves_its_trace(checkpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(llm: LLM, *_: Any, **__: Any) -> None:
        llm.engine.add_request("r", "x")
        llm.engine.step()
        raise KeyboardInterrupt

    monkeypatch.setattr(LLM, "generate", interrupt)
    assert generate(checkpoint, tmp_path / "trace.json") == 130
    assert spans(tmp_path / "trace.json", "device", "forward")


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("missing/trace.json", "No such file or directory"),
        ("", "Is a directory"),
        ("file/trace.json", "Not a directory"),
    ],
)
def test_a_path_that_cannot_be_written_is_refused_before_the_run(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, reason: str
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr(LLM, "__init__", lambda *_, **__: pytest.fail("it ran"))
    assert main(["generate", "--prompt", "x", "--trace", str(tmp_path / path)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == f"thalweg: --trace {tmp_path / path} cannot be written: {reason}\n"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no device that is always full")
def test_a_full_disk_is_reported_with_the_name_of_the_file(checkpoint: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert generate(checkpoint, Path("/dev/full")) == 2
    assert capsys.readouterr().err == "thalweg: --trace /dev/full cannot be written: No space left on device\n"


def test_a_run_that_cannot_start_leaves_no_file_and_no_damage(tmp_path: Path) -> None:
    kept = tmp_path / "kept.json"
    kept.write_text("an older file")
    for trace in (kept, tmp_path / "new.json"):
        assert main(["generate", "--prompt", "x", "--model", "/nowhere", "--trace", str(trace)]) == 2
    assert kept.read_text() == "an older file"
    assert [file.name for file in tmp_path.iterdir()] == ["kept.json"]
