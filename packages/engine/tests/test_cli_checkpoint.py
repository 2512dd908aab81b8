"""The command line with a small random checkpoint, in processes of their own where that is the point."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from thalweg.engine import LLM, SamplingParams
from thalweg.engine.cli import main

SMALL = ["--max-model-len", "256", "--arithmetic", "float32"]


def thalweg(*arguments: str, stdin: bytes = b"") -> "subprocess.CompletedProcess[bytes]":
    """Run the command line as a user does."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("THALWEG_")}
    command = [sys.executable, "-m", "thalweg.engine.cli", *arguments]
    return subprocess.run(command, input=stdin, capture_output=True, env=environ)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> str:
    directory = tmp_path_factory.mktemp("tiny") / "random"
    assert main(["tiny", str(directory), "--seed", "3"]) == 0
    return str(directory)


def test_a_random_checkpoint_is_complete_and_depends_on_its_seed_alone(checkpoint: str, tmp_path: Path) -> None:
    for seed, is_equal in (("3", True), ("4", False)):
        assert main(["tiny", str(tmp_path / seed), "--seed", seed]) == 0
        files = {file.name: file.read_bytes() for file in Path(checkpoint).iterdir()}
        again = {file.name: file.read_bytes() for file in (tmp_path / seed).iterdir()}
        assert set(files) == set(again)
        assert {"config.json", "tokenizer.json", "model.safetensors.index.json"} < set(files)
        assert (files == again) is is_equal


def test_a_random_checkpoint_can_have_a_drafter(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, layers in ((("--drafts",), 1), (("--drafts", "2"), 2)):
        directory = tmp_path / str(layers)
        assert main(["tiny", str(directory), *arguments]) == 0
        text = json.loads((directory / "config.json").read_text())["text_config"]
        assert text["num_nextn_predict_layers"] == layers
    prompt = ("--prompt", "x", "--temperature", "0", "--max-tokens", "6")
    capsys.readouterr()
    texts = []
    for length in ("0", "3"):
        assert main(["generate", "--model", str(tmp_path / "1"), *SMALL, *prompt, "--draft-length", length]) == 0
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1]
    assert main(["config", "--model", str(tmp_path / "1")]) == 0
    rows = {line.split()[0]: line.split()[1:] for line in capsys.readouterr().out.splitlines() if line}
    assert rows["draft_length"] == ["5", "checkpoint"]
    wrong_number = ["--confidence-temperatures", "1,2,3"]
    assert main(["config", "--model", str(tmp_path / "1"), *wrong_number]) == 2
    assert "there are 3 temperatures" in capsys.readouterr().err


def test_a_config_decides_the_dimensions(checkpoint: str, tmp_path: Path) -> None:
    config = json.loads((Path(checkpoint) / "config.json").read_text())
    config["text_config"]["moe_intermediate_size"] *= 2
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert main(["tiny", str(tmp_path / "wide"), "--config", str(tmp_path / "config.json")]) == 0
    written = json.loads((tmp_path / "wide" / "config.json").read_text())
    assert written["text_config"]["moe_intermediate_size"] == config["text_config"]["moe_intermediate_size"]


def test_a_path_that_is_no_text_is_a_path_all_the_same(checkpoint: str, tmp_path: Path) -> None:
    directory = os.fsdecode(bytes(tmp_path) + b"/\xff new\nline")
    result = thalweg("tiny", directory, "--seed", "3")
    assert (result.returncode, result.stderr) == (0, b"")
    for file in Path(checkpoint).iterdir():
        assert (Path(directory) / file.name).read_bytes() == file.read_bytes()
    result = thalweg("generate", "--model", directory, *SMALL, "--max-tokens", "1", "--prompt", "x")
    assert (result.returncode, result.stderr) == (0, b"")


def test_generate_prints_what_the_api_returns(checkpoint: str) -> None:
    prompts = ["abc def", "xyz"]
    command = ["generate", "--model", checkpoint, *SMALL, "--max-tokens", "6", "--temperature", "0.7", "--seed", "5"]
    result = thalweg(*command, "--prompt", prompts[0], "--json", "--prompts-file", "-", stdin=b"\nxyz\n")
    assert (result.returncode, result.stderr) == (0, b"")
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    with LLM(checkpoint, max_model_len=256, arithmetic="float32", seed=5) as llm:
        expected = llm.generate(prompts, SamplingParams(max_tokens=6, temperature=0.7), use_tqdm=False)
    assert [line["prompt"] for line in lines] == prompts
    for line, output in zip(lines, expected, strict=True):
        completion = output.outputs[0]
        assert line["outputs"][0]["text"] == completion.text
        assert line["outputs"][0]["token_ids"] == list(completion.token_ids)
        assert line["outputs"][0]["finish_reason"] == completion.finish_reason
        assert line["prompt_token_ids"] == list(output.prompt_token_ids)
        assert line["metrics"]["num_output_tokens"] == len(completion.token_ids)


def test_generate_prints_every_output_of_a_prompt(checkpoint: str, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["generate", "--model", checkpoint, *SMALL, "--max-tokens", "3", "--ignore-eos", "--prompt", "abc"]
    command += ["--n", "3", "--sampling-seed", "4", "--min-p", "0.001", "--repetition-penalty", "1.1"]
    assert main(command) == 0
    text = capsys.readouterr().out
    assert main([*command, "--json", "--logprobs", "2", "--prompt-logprobs", "0"]) == 0
    output = json.loads(capsys.readouterr().out)
    assert text.startswith(
        f"== prompt 1: {len(output['prompt_token_ids'])} prompt tokens, 9 output tokens, 3 outputs\n"
    )
    assert len({tuple(completion["token_ids"]) for completion in output["outputs"]}) > 1
    for completion in output["outputs"]:
        assert f"-- output {completion['index']}: 3 tokens, length\nabc{completion['text']}\n" in text
        pairs = zip(completion["token_ids"], completion["logprobs"], strict=True)
        assert all(str(token_id) in known for token_id, known in pairs)
        assert all(2 <= len(known) <= 3 for known in completion["logprobs"])
    assert [len(known) for known in output["prompt_logprobs"]] == [1] * (len(output["prompt_token_ids"]) - 1)


def test_a_prompt_that_cannot_be_served_fails_alone_and_shows_in_the_status(
    checkpoint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["generate", "--model", checkpoint, *SMALL, "--max-tokens", "2"]
    assert main([*command, "--prompt", "", "--prompt", "ok", "--prompt", "x y " * 300]) == 1
    captured = capsys.readouterr()
    headers = [line for line in captured.out.splitlines() if line.startswith("== prompt")]
    assert ["failed" in header for header in headers] == [True, False, True]
    assert "max_model_len" in headers[2]
    assert captured.err == "thalweg: 2 of 3 prompts failed\n"


def test_the_environment_fills_defaults_of_generate(
    checkpoint: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("MODEL", checkpoint), ("MAX_MODEL_LEN", "64"), ("ARITHMETIC", "float32")):
        monkeypatch.setenv(f"THALWEG_{name}", value)
    command = ["generate", "--max-tokens", "2", "--prompt", "one"]
    assert main(command) == 0
    assert capsys.readouterr().out.startswith("== prompt 1: ")
    monkeypatch.setenv("THALWEG_MODEL", "/nowhere")
    assert main(command) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "/nowhere" in error


def test_a_reader_that_leaves_early_is_not_an_error(checkpoint: str) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "thalweg.engine.cli", "inspect", checkpoint],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    assert process.stderr.read() == b""
    assert process.wait() == 0


def test_config_names_the_origin_of_every_value(
    checkpoint: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("THALWEG_MAX_NUM_SEQS", "7")
    monkeypatch.setenv("THALWEG_MAX_NUM_SEQ", "8")
    assert main(["config", "--model", checkpoint, "--seed", "5"]) == 0
    output = capsys.readouterr().out
    rows = {line.split()[0]: line.split()[1:] for line in output.splitlines()}
    assert rows["max_num_seqs"] == ["7", "THALWEG_MAX_NUM_SEQS"]
    assert rows["seed"] == ["5", "--seed"]
    assert rows["mode"] == ["quant", "default"]
    assert rows["draft_length"] == ["0", "checkpoint"]
    assert "THALWEG_MAX_NUM_SEQ is set" in output
    assert "did you mean THALWEG_MAX_NUM_SEQS?" in output
    assert main(["config", "--model", checkpoint, "--json"]) == 0
    values = json.loads(capsys.readouterr().out)
    assert values["model"] == {"value": checkpoint, "origin": "--model"}
    assert values["max_num_seqs"] == {"value": 7, "origin": "THALWEG_MAX_NUM_SEQS"}


@pytest.mark.parametrize("command", [["config", "--model"], ["config", "--json", "--model"], ["inspect"]])
def test_commands_that_compute_nothing_import_no_torch(checkpoint: str, command: list[str]) -> None:
    code = (
        "import sys\n"
        "from thalweg.engine.cli import main\n"
        f"status = main({[*command, checkpoint]!r})\n"
        "print(status, sorted({'torch', 'tokenizers'} & set(sys.modules)))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.endswith("\n0 []\n")


def test_config_points_out_unknown_variables_beside_its_json(
    checkpoint: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("THALWEG_MAX_NUM_SEQ", "8")
    assert main(["config", "--model", checkpoint, "--json"]) == 0
    assert "THALWEG_MAX_NUM_SEQ is set" in capsys.readouterr().err


def test_config_refuses_what_generate_would_refuse(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "--max-model-len", "10000000"]) == 2
    assert "max_model_len is 10000000; the checkpoint has" in capsys.readouterr().err


def test_config_without_any_checkpoint_still_shows_the_options(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("THALWEG_MODEL", raising=False)
    monkeypatch.setitem(sys.modules, "thalweg.tiny", None)
    assert main(["config"]) == 0
    output = capsys.readouterr().out
    assert "note: model is None and the distribution thalweg-tiny is not installed" in output
    assert "max_num_seqs" in output


def test_a_cache_that_is_too_small_is_one_line(checkpoint: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", "--model", checkpoint, "--num-blocks", "2", "--prompt", "x"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "blocks" in error


def test_inspect_reports_a_complete_checkpoint_with_success(
    checkpoint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for options in ([], ["--all"]):
        assert main(["inspect", checkpoint, *options]) == 0
        output = capsys.readouterr().out
        assert "embed.weight" in output
        assert ("layers.3.attn_norm.weight" in output) == bool(options)


def test_inspect_reports_an_incomplete_checkpoint_with_status_one(
    checkpoint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shard = sorted(Path(checkpoint).glob("*.safetensors"))[0].name
    for file in Path(checkpoint).iterdir():
        if file.name != shard:
            (tmp_path / file.name).symlink_to(file)
    assert main(["inspect", str(tmp_path)]) == 1
    assert "missing" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["inspect", "generate"])
def test_a_folder_that_is_no_checkpoint_is_one_line(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["inspect", str(tmp_path)] if command == "inspect" else ["generate", "--model", str(tmp_path)]
    assert main([*arguments, *(["--prompt", "x"] if command == "generate" else [])]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "config.json" in error


def test_a_missing_tokenizer_is_named(checkpoint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for file in Path(checkpoint).iterdir():
        if file.name != "tokenizer.json":
            (tmp_path / file.name).symlink_to(file)
    assert main(["generate", "--model", str(tmp_path), "--prompt", "x"]) == 2
    assert "tokenizer.json" in capsys.readouterr().err


def test_kernels_lists_every_op_of_the_cpu(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["kernels"]) == 0
    output = capsys.readouterr().out
    for op in ("rms_norm", "sample_tokens", "sparse_attention"):
        assert op in output


def test_a_backend_that_is_not_there_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("sm100", "quantum"):
        assert main(["kernels", "--backend", name]) == 2
        error = capsys.readouterr().err
        assert error.count("\n") == 1
        assert name in error
