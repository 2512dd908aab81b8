"""Continue prompts and print the results."""

from __future__ import annotations

import argparse
import dataclasses
import io
import json
import logging
import os
import sys
from typing import TYPE_CHECKING

from thalweg.engine.cli.files import read_text
from thalweg.engine.cli.options import add_engine_options, add_sampling_options, engine_config, sampling_params
from thalweg.engine.config import OFFLINE_DEFAULTS, EngineConfig
from thalweg.interfaces import ConfigError, SamplingParams

if TYPE_CHECKING:
    from thalweg.engine.timeline import Timeline
    from thalweg.interfaces import RequestOutput

_USAGE = "%(prog)s [--prompt TEXT ...] [--prompts-file FILE] [sampling options] [engine options]"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of this command."""
    parser.usage = _USAGE
    parser.add_argument("--prompt", action="append", metavar="TEXT", help="a prompt; may be repeated")
    parser.add_argument(
        "--prompts-file",
        metavar="FILE",
        help="one prompt a line, blank lines skipped; - is standard input, which is also read without any prompt",
    )
    parser.add_argument("--json", action="store_true", help="print one RequestOutput a line, as JSON")
    parser.add_argument(
        "--trace", metavar="FILE", help="write what host and device did when, for Perfetto or chrome://tracing"
    )
    add_sampling_options(parser)
    add_engine_options(parser)


def run(arguments: argparse.Namespace) -> int:
    """Print every output in the order of the prompts. 1 if a prompt was refused or failed."""
    params = sampling_params(arguments)
    config = engine_config(arguments)
    if not arguments.json:
        _check_shown(params, config)
    prompts = _prompts(arguments)
    if arguments.trace is not None:
        _check_writable("--trace", arguments.trace)
    _show_statistics(config)
    # Read when torch loads. The threads of a small model often wait for each other; if they spin meanwhile, a machine
    # that has other work to do spends ten times the processor time.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    from thalweg.engine.llm import LLM
    from thalweg.engine.timeline import Timeline

    timeline = None if arguments.trace is None else Timeline()
    with LLM(config=config, timeline=timeline) as llm:
        try:
            outputs = llm.generate(prompts, params, use_tqdm=sys.stderr.isatty())
            for number, output in enumerate(outputs, start=1):
                print(_json(output) if arguments.json else _text(output, number))
        finally:  # a run that fails or is interrupted is worth looking at, too
            if timeline is not None:
                _write_trace(timeline, arguments.trace)
    num_failed = sum(output.error is not None for output in outputs)
    if num_failed:
        print(f"thalweg: {num_failed} of {len(outputs)} prompts failed", file=sys.stderr)
    return int(num_failed > 0)


def _check_shown(params: SamplingParams, config: EngineConfig) -> None:
    """Raise ConfigError for what somebody asked for and plain text has no place for."""
    asked = {
        "--logprobs": params.logprobs is not None,
        "--prompt-logprobs": params.prompt_logprobs is not None,
        "--return-draws": config.sampling.return_draws,
    }
    for flag, is_asked in asked.items():
        if is_asked:
            raise ConfigError(f"{flag} needs --json; the text of an output has no place for it")


def _show_statistics(config: EngineConfig) -> None:
    """Let the statistics line reach standard error, if somebody asked for it."""
    logger = logging.getLogger("thalweg.engine.statistics")
    if config.with_defaults(**OFFLINE_DEFAULTS).statistics.log_stats and not logger.handlers:
        logger.addHandler(logging.StreamHandler())
        logger.setLevel(logging.INFO)


def _check_writable(flag: str, path: str) -> None:
    """Raise ConfigError unless the file can be written; leaves what is there as it is."""
    existed = os.path.lexists(path)
    try:
        open(path, "ab").close()
        if not existed:
            os.remove(path)
    except OSError as error:
        raise ConfigError(f"{flag} {path} cannot be written: {error.strerror}") from None


def _write_trace(timeline: Timeline, path: str) -> None:
    try:
        timeline.write(path)
    except OSError as error:
        raise ConfigError(f"--trace {path} cannot be written: {error.strerror}") from None


def _json(output: RequestOutput) -> str:
    return json.dumps(dataclasses.asdict(output), ensure_ascii=False)


def _text(output: RequestOutput, number: int) -> str:
    """A heading, then prompt and output; with several outputs a heading above each of them."""
    counts = f"{output.metrics.num_prompt_tokens} prompt tokens, {output.metrics.num_output_tokens} output tokens"
    several = len(output.outputs) > 1
    if output.error:
        ending = f"failed: {output.error}"
    else:
        ending = f"{len(output.outputs)} outputs" if several else str(output.outputs[0].finish_reason)
    lines = [f"== prompt {number}: {counts}, {ending}"]
    for completion in output.outputs:
        if several:
            lines.append(
                f"-- output {completion.index}: {len(completion.token_ids)} tokens, {completion.finish_reason}"
            )
        lines.append(f"{output.prompt}{completion.text}\n")
    return "\n".join(lines)


def _prompts(arguments: argparse.Namespace) -> list[str]:
    """The prompts of the options, those of the file last. Raises ConfigError when there are none."""
    prompts = list(arguments.prompt or [])
    source = arguments.prompts_file
    if source is None and not prompts:
        if sys.stdin is None or sys.stdin.isatty():
            raise ConfigError("no prompts; give --prompt, --prompts-file, or lines on standard input")
        source = "-"
    if source is not None:
        # Not `splitlines`, which also cuts at form feeds and other characters that a prompt may contain.
        prompts += [line.rstrip("\r\n") for line in io.StringIO(_read_prompts(source), newline=None) if line.strip()]
    if not prompts:
        raise ConfigError(f"no prompts; {'standard input' if source == '-' else source} has only blank lines")
    return prompts


def _read_prompts(source: str) -> str:
    try:
        return read_text(source)
    except ConfigError as error:
        raise ConfigError(f"--prompts-file {error}") from None
