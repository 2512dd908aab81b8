"""The command line without a model: parsing, help, bad input, exit statuses."""

import dataclasses
import io
import json
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from thalweg.engine import device_ops
from thalweg.engine.__about__ import __version__
from thalweg.engine.cli import main
from thalweg.engine.cli.generate import _prompts, _text
from thalweg.engine.cli.options import SAMPLING_OPTIONS, engine_config, sampling_params
from thalweg.engine.cli.program import build_parser
from thalweg.engine.cli.table import render
from thalweg.engine.fields import FIELDS
from thalweg.engine.sampling_config import SamplingConfig
from thalweg.interfaces import (
    CompletionOutput,
    GrammarSpec,
    RequestMetrics,
    RequestOutput,
    SamplingParams,
)


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for option in FIELDS:
        monkeypatch.delenv(option.variable.full_name, raising=False)


def run(*arguments: str) -> int:
    """The exit status, whether returned or raised by the parser."""
    try:
        return main(arguments)
    except SystemExit as exit_:
        return int(exit_.code or 0)


def fails_with_one_line(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert run(*arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("thalweg")
    assert captured.err.count("\n") == 1
    return captured.err


def test_help_is_quick_and_imports_no_torch() -> None:
    code = (
        "import sys\n"
        "from thalweg.engine.cli import main\n"
        "try: main(['generate', '--help'])\n"
        "except SystemExit: pass\n"
        "print(sorted({'torch', 'tokenizers', 'safetensors'} & set(sys.modules)))"
    )
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert result.stdout.endswith("[]\n")
    assert after.ru_utime - before.ru_utime < 1.0  # 0.15 s on an idle machine


def test_the_installed_command_says_its_version() -> None:
    result = subprocess.run([sys.executable, "-m", "thalweg.engine.cli", "--version"], capture_output=True, text=True)
    assert (result.returncode, result.stdout) == (0, f"thalweg {__version__}\n")


@pytest.mark.parametrize("command", ["generate", "config", "inspect", "kernels", "tiny"])
def test_every_command_has_help(capsys: pytest.CaptureFixture[str], command: str) -> None:
    assert run(command, "--help") == 0
    assert f"usage: thalweg {command}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "COMMAND"),
        (("serve",), "invalid choice: 'serve'"),
        (("generate", "--temprature", "1"), "unrecognized arguments: --temprature"),
        (("generate", "--max-num", "1"), "unrecognized arguments"),
        (("generate", "--prompt"), "expected one argument"),
        (("inspect",), "CHECKPOINT"),
        (("tiny",), "DIR"),
    ],
)
def test_a_command_line_that_does_not_parse_is_one_line(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], message: str
) -> None:
    error = fails_with_one_line(capsys, *arguments)
    assert message in error
    assert "--help" in error


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--temperature", "hot"), "--temperature is 'hot'"),
        (("--temperature", "-1"), "temperature is -1.0; it must be >= 0"),
        (("--top-k", "0"), "top_k is 0"),
        (("--max-tokens", "0"), "max_tokens is 0"),
        (("--min-tokens", "5", "--max-tokens", "4"), "min_tokens is 5 and max_tokens is 4"),
        (("--n", "0"), "n is 0"),
        (("--n", "2", "--temperature", "0"), "n is 2 and temperature is 0"),
        (("--min-p", "2"), "min_p is 2.0"),
        (("--presence-penalty", "-3"), "presence_penalty is -3.0"),
        (("--frequency-penalty", "much"), "--frequency-penalty is 'much'"),
        (("--repetition-penalty", "0"), "repetition_penalty is 0.0"),
        (("--logit-bias", "5"), "--logit-bias is '5': expected a token id, =, and what to add"),
        (("--logit-bias", "5=101"), "logit_bias[5] is 101.0"),
        (("--logit-bias", "5=1", "--logit-bias", "5=2"), "--logit-bias is given twice for token id 5"),
        (("--bad-word", " "), "bad_words contains ' '"),
        (("--logprobs", "1001"), "logprobs is 1001"),
        (("--prompt-logprobs", "-1"), "prompt_logprobs is -1"),
        (("--forced-token-ids", "1,2", "--max-tokens", "1"), "forced_token_ids forces token 2"),
        (("--logprobs", "1"), "--logprobs needs --json"),
        (("--prompt-logprobs", "0"), "--prompt-logprobs needs --json"),
        (("--return-draws",), "--return-draws needs --json"),
        (("--token-blacklist", "1,,2"), "--token-blacklist is '1,,2'"),
        (("--token-blacklist", "-1"), "token_blacklist is (-1,)"),
        (("--force-top-k", "-1"), "force_top_k is -1"),
        (("--stop", ""), "stop contains ''"),
        (("--stop-token-id", "1", "--stop-token-id", "x"), "--stop-token-id is 'x'"),
        (("--structured", "[a-c]+"), "--structured is '[a-c]+': expected a kind such as json or regex, =, and"),
        (("--structured", "yaml=a: b"), "--structured is 'yaml=a: b': kind is 'yaml'; it must be one of json, regex,"),
        (("--structured", "json="), "source is ''; it must be a non-empty string"),
        (("--structured", "json=@/nowhere/schema"), "/nowhere/schema cannot be read: No such file"),
        (("--sampling-seed", "1.5"), "--sampling-seed is '1.5': expected an integer"),
        (("--graph-interval", "nan"), "--graph-interval is 'nan': expected an integer"),
        (("--logit-bias", "x=1"), "--logit-bias is 'x=1': expected an integer as token id"),
        (("--logit-bias", "1=x"), "--logit-bias is '1=x': expected a number to add to its logit"),
        (("--forced-token-ids", "1,,2"), "--forced-token-ids is '1,,2': expected integers separated by commas"),
        (("--kernels", "draw=a,draw=b"), "kernels names 'draw' twice, with 'a' and 'b'; give each op once"),
        (("--mode", "fast"), "--mode is 'fast': expected quant or plain"),
        (("--max-num-seqs", "0"), "max_num_seqs is 0"),
        (("--num-blocks", "8", "--memory-fraction", "0.5"), "give one of them"),
        (("--draft-length", "-3"), "draft_length is -3"),
        (("--prompts-file", "/nowhere/prompts.txt"), "/nowhere/prompts.txt cannot be read"),
        (("--model", "/nowhere/model"), "/nowhere/model"),
    ],
)
def test_a_bad_option_of_generate_is_one_line_that_names_it(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], message: str
) -> None:
    assert message in fails_with_one_line(capsys, "generate", "--prompt", "x", *arguments)


def test_a_bad_variable_is_one_line_that_names_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("THALWEG_MAX_NUM_SEQS", "many")
    assert "THALWEG_MAX_NUM_SEQS is 'many'" in fails_with_one_line(capsys, "generate", "--prompt", "x")
    assert "THALWEG_MAX_NUM_SEQS is 'many'" in fails_with_one_line(capsys, "config")


@pytest.mark.parametrize("content", [b"", b"\n  \n\n", b"ok\n\xff\xfe\n"])
def test_prompts_that_are_blank_or_not_text_are_refused(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, content: bytes
) -> None:
    message = "is not UTF-8" if content.startswith(b"ok") else "has only blank lines"
    (tmp_path / "prompts.txt").write_bytes(content)
    assert message in fails_with_one_line(capsys, "generate", "--prompts-file", str(tmp_path / "prompts.txt"))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))
    assert message in fails_with_one_line(capsys, "generate")


def test_a_prompts_file_is_cut_at_line_ends_only(tmp_path: Path) -> None:
    content = "\ufeffone\r\n\r\n two \x0c\u2028 still two\x85\nthree\r"
    (tmp_path / "prompts.txt").write_bytes(content.encode())
    parsed = build_parser().parse_args(
        ["generate", "--prompt", "zero", "--prompts-file", str(tmp_path / "prompts.txt")]
    )
    assert _prompts(parsed) == ["zero", "one", " two \x0c\u2028 still two\x85", "three"]


@pytest.mark.parametrize("closing", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams_are_not_an_error(closing: str) -> None:
    command = f"{sys.executable} -m thalweg.engine.cli kernels {closing}"
    result = subprocess.run(["sh", "-c", command], capture_output=True, text=True)
    assert (result.returncode, result.stderr) == (0, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
@pytest.mark.parametrize("command", ["config", "kernels"])
def test_a_full_disk_is_one_line(command: str) -> None:
    line = f"{sys.executable} -m thalweg.engine.cli {command} > /dev/full"
    result = subprocess.run(["sh", "-c", line], capture_output=True, text=True)
    assert (result.returncode, result.stderr) == (2, "thalweg: standard output: No space left on device\n")


def test_without_prompts_on_a_terminal_the_error_says_how_to_give_them(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(sys, "stdin", Terminal())
    assert "no prompts; give --prompt" in fails_with_one_line(capsys, "generate")


def test_an_interrupt_is_one_line(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupted(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            raise KeyboardInterrupt

    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(Interrupted()))
    assert run("generate") == 130
    assert capsys.readouterr().err == "thalweg: interrupted\n"


ALL_KINDS_OF_OPTIONS = """
generate --prompt x --model m --seed 3 --sampling-seed 4 --temperature 0.5 --top-p 0.9 --top-k 5 --max-tokens 7
--min-tokens 2 --stop a --stop b --stop-token-id 8 --stop-token-id 9 --ignore-eos --max-num-seqs 6 --chunked-prefill
--no-stop-preempted-request --arithmetic float32 --num-blocks 32
--n 2 --min-p 0.1 --presence-penalty -1 --frequency-penalty 0.5 --repetition-penalty 1.2 --logit-bias 5=-2.5
--logit-bias 6=100 --bad-word c --bad-word d --logprobs 3 --prompt-logprobs 0 --forced-token-ids=-1,11,12
--token-blacklist 1,2 --force-top-k 50 --return-draws --logprobs-mode processed
"""


def test_options_become_the_configuration_and_the_parameters() -> None:
    parsed = build_parser().parse_args(ALL_KINDS_OF_OPTIONS.split())
    assert sampling_params(parsed) == SamplingParams(
        seed=4,
        temperature=0.5,
        top_p=0.9,
        top_k=5,
        max_tokens=7,
        min_tokens=2,
        stop=("a", "b"),
        stop_token_ids=(8, 9),
        ignore_eos=True,
        n=2,
        min_p=0.1,
        presence_penalty=-1.0,
        frequency_penalty=0.5,
        repetition_penalty=1.2,
        logit_bias={5: -2.5, 6: 100.0},
        bad_words=("c", "d"),
        logprobs=3,
        prompt_logprobs=0,
        forced_token_ids=(-1, 11, 12),
    )
    config = engine_config(parsed)
    assert (config.model, config.seed, config.arithmetic, config.cache.num_blocks) == ("m", 3, "float32", 32)
    assert config.sampling == SamplingConfig(token_blacklist=(1, 2), force_top_k=50, return_draws=True)
    assert (config.logprobs_mode, config.scheduler.max_num_seqs) == ("processed", 6)
    assert config.scheduler.chunked_prefill
    assert not config.scheduler.stop_preempted_request


def test_options_that_are_not_given_stay_at_their_defaults() -> None:
    parsed = build_parser().parse_args(["generate"])
    assert sampling_params(parsed) == SamplingParams()
    assert all(
        option.value == option.field.read(type(engine_config(parsed))()) for option in engine_config(parsed).resolved()
    )


def test_every_sampling_field_has_an_option() -> None:
    assert {option.field for option in SAMPLING_OPTIONS} == {field.name for field in dataclasses.fields(SamplingParams)}


def test_a_grammar_is_given_by_its_text_or_by_a_file(tmp_path: Path) -> None:
    def grammar(given: str) -> GrammarSpec | None:
        return sampling_params(build_parser().parse_args(["generate", "--structured", given])).structured

    (tmp_path / "schema.json").write_bytes('\ufeff{"enum": ["é"]}'.encode())
    assert grammar(f"json=@{tmp_path / 'schema.json'}") == GrammarSpec("json", '{"enum": ["é"]}')
    assert grammar("regex=a=b@c") == GrammarSpec("regex", "a=b@c")
    assert grammar('choice=["yes", "no"]') == GrammarSpec.choice(["yes", "no"])


def finished(*texts: str, error: str | None = None) -> RequestOutput:
    outputs = tuple(
        CompletionOutput(index, text, (5,) * len(text), None, "stop", None) for index, text in enumerate(texts)
    )
    return RequestOutput("r", "Prompt: ", (3,), None, outputs, True, error, RequestMetrics(1, sum(map(len, texts))))


def test_the_text_of_one_output_follows_its_prompt() -> None:
    assert _text(finished("ab"), 3) == "== prompt 3: 1 prompt tokens, 2 output tokens, stop\nPrompt: ab\n"
    failed = _text(finished("", error="it is too long"), 1)
    assert failed == "== prompt 1: 1 prompt tokens, 0 output tokens, failed: it is too long\nPrompt: \n"


def test_all_outputs_of_a_prompt_are_shown() -> None:
    assert _text(finished("ab", "c"), 1).splitlines() == [
        "== prompt 1: 1 prompt tokens, 3 output tokens, 2 outputs",
        "-- output 0: 2 tokens, stop",
        "Prompt: ab",
        "",
        "-- output 1: 1 tokens, stop",
        "Prompt: c",
    ]


def test_a_table_pads_columns_but_not_line_ends() -> None:
    assert render(("a", "long"), [("wide", "x"), ("y", "z")]) == "a     long\n----  ----\nwide  x\ny     z"


def test_a_folder_in_use_is_never_written_to(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("data")
    assert "exists and is not an empty folder" in fails_with_one_line(capsys, "tiny", str(tmp_path))
    assert "exists and is not an empty folder" in fails_with_one_line(capsys, "tiny", str(tmp_path / "precious"))
    assert [file.name for file in tmp_path.iterdir()] == ["precious"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--seed", "-1"), "--seed is '-1'"),
        (("--seed", "x"), "--seed is 'x'"),
        (("--seed", "9" * 5000), "it must be an integer from 0 to 2**64-1"),
        (("--config", "/nowhere/config.json"), "--config /nowhere/config.json cannot be read"),
        (("--drafts", "0"), "--drafts is 0; 1 to 8 draft layers are accepted"),
        (("--drafts", "9"), "--drafts is 9; 1 to 8 draft layers are accepted"),
        (("--drafts", "many"), "--drafts is 'many'; it must be a number of draft layers"),
        (("--drafts", "--config", "x"), "--drafts and --config are both given"),
    ],
)
def test_a_bad_option_of_tiny_is_one_line_and_writes_nothing(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    assert message in fails_with_one_line(capsys, "tiny", str(tmp_path / "new"), *arguments)
    assert not (tmp_path / "new").exists()


def test_a_config_that_is_not_an_object_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for content in ("[1]", "{", "\xff", "[" * 100_000):
        (tmp_path / "config.json").write_text(content, encoding="latin-1")
        error = fails_with_one_line(capsys, "tiny", str(tmp_path / "new"), "--config", str(tmp_path / "config.json"))
        assert "config.json" in error
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    error = fails_with_one_line(capsys, "tiny", str(tmp_path / "new"), "--config", str(tmp_path / "config.json"))
    assert "config.json" in error or "model_type" in error or "architectures" in error


def test_kernels_of_a_gpu_are_listed_without_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["kernels", "--backend", "sm90"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(("sm90 (sm_90a), without a device: backend sm90 needs", "sm90 (sm_90a) on NVIDIA"))
    taken = next(line.split() for line in lines if line.startswith("apply_token_bitmask "))
    assert taken[1:3] == ["*", "tilelang"]
    missing = next(line for line in lines if line.startswith("dequantize_mxfp8 "))
    assert missing.endswith("no implementation: whoever uses it must ask for dequantize_mxfp8=reference")
    assert lines[-2].endswith("ops that the engine calls on a device all have one that fits.")


def taken_for(op: str, output: str) -> list[str]:
    """The words of the table's line for what serves an op."""
    return next(words for line in output.splitlines() if (words := line.split())[:2] == [op, "*"])


def test_kernels_shows_what_the_environment_and_the_options_ask_for(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("THALWEG_BACKEND", "sm90")
    monkeypatch.setenv("THALWEG_KERNELS", "add_biases=reference,dequantize_mxfp8=reference")
    assert run("kernels") == 0
    output = capsys.readouterr().out
    assert output.startswith("sm90 (sm_90a)")
    for op in ("add_biases", "dequantize_mxfp8"):
        assert taken_for(op, output)[2] == "reference"
        assert taken_for(op, output)[-4:] == ["asked", "for", "by", "name"]
    assert taken_for("draw", output)[2] == "tilelang"
    assert run("kernels", "--kernels", "draw=reference") == 0
    output = capsys.readouterr().out
    assert [taken_for(op, output)[2] for op in ("draw", "add_biases")] == ["reference", "tilelang"]
    monkeypatch.setenv("THALWEG_KERNELS", "")
    assert run("kernels", "--backend", "cpu") == 0
    assert taken_for("draw", capsys.readouterr().out)[2] == "reference"


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        ("add_biases", "--kernels is 'add_biases': expected op=provider pairs"),
        ("no_such_op=reference", "there is no op 'no_such_op'"),
        ("add_biases=deep_gemm", "nothing computes add_biases on sm90 by deep_gemm"),
    ],
)
def test_kernels_refuses_an_override_that_an_engine_would(
    capsys: pytest.CaptureFixture[str], pairs: str, message: str
) -> None:
    assert message in fails_with_one_line(capsys, "kernels", "--backend", "sm90", "--kernels", pairs)


def test_kernels_adds_what_is_missing_to_what_was_asked_for(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_ops, "missing_ops", lambda ops: ["topk_gate"])
    assert run("kernels", "--backend", "sm90", "--kernels", "draw=reference") == 0
    assert capsys.readouterr().out.splitlines()[-1] == "--kernels draw=reference,topk_gate=reference"
