"""Train the backbone for some minutes, from the start or from a resume point."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import torch
from tools.train.backbone.phases import small_plan
from tools.train.backbone.training import Log, Progress, Training, load_training_point
from tools.train.common.compiled import compile_all, load_compiled, save_compiled
from tools.train.common.dimensions import small_model
from tools.train.common.files import load_tokens

from thalweg.interfaces import ConfigError, ThalwegError
from thalweg.model.engram_vocabulary import TOKENIZER_NAME, EngramVocabulary

_REPORT_STEPS = 50
_EVALUATE_STEPS = 400
_SAVING_S = 20.0
"""What the last evaluation and the resume point may take."""


def main() -> None:
    """Parse the command line and train."""
    started = time.monotonic()
    options = _options()
    device = torch.device(options.device)
    if device.type == "cuda":
        compile_all()
        load_compiled(options.compiled)
    if options.smoke:
        from tools.train.backbone.smoke import smoke

        smoke(options.data, options.out, device, started)
    else:
        _train(options, device, started)
    if device.type == "cuda":
        save_compiled(options.compiled)


def _train(options: argparse.Namespace, device: torch.device, started: float) -> None:
    log = Log(options.out / "log.jsonl")
    masters, progress = None, Progress(options.seed, 60.0 * options.minutes)
    if options.resume is not None:
        masters, progress = load_training_point(options.resume)
        progress.planned_s = 60.0 * options.minutes
    progress.invocations += 1
    vocabulary = EngramVocabulary.from_tokenizer_file(options.data / TOKENIZER_NAME)
    training = Training(
        small_model(vocabulary, drafter=False),
        vocabulary,
        small_plan(),
        load_tokens(options.data, "train"),
        load_tokens(options.data, "evaluation"),
        progress,
        device,
        masters,
    )
    log.write("start", **{name: getattr(progress, name) for name in Progress.__slots__})
    training.warm()
    log.write("warm", seconds=round(time.monotonic() - started, 1))
    last_s = 60.0 * options.max_minutes - _SAVING_S
    training.clock.resume()
    while training.clock.progress < 1 and time.monotonic() - started < last_s:
        phase = training.advance()
        if progress.steps % _REPORT_STEPS == 0:
            log.write(
                "train",
                phase=phase.name,
                step=progress.steps,
                tokens=progress.tokens,
                elapsed_s=round(training.clock.elapsed_s, 2),
                **_shown(training.mean_losses()),
            )
        if progress.steps % _EVALUATE_STEPS == 0:
            _evaluate(training, log)
    training.clock.pause()
    training.save(options.out)
    _evaluate(training, log)
    log.write("end", seconds=round(time.monotonic() - started, 1), progress=round(training.clock.progress, 4))


def _shown(means: Mapping[int, tuple[float, float]]) -> dict[str, float]:
    """Losses by name: windows of different length are never mixed."""
    shown: dict[str, float] = {}
    for length, (language, indexing) in means.items():
        shown |= {f"loss_{length}": round(language, 4), f"indexers_{length}": round(indexing, 4)}
    return shown


def _evaluate(training: Training, log: Log) -> None:
    with training.clock.paused():
        loss, count = training.held_out_loss()
        losses = {"loss": loss}
        if training.optimiser.is_averaging:
            with training.optimiser.averaged():
                losses["loss_averaged"] = training.held_out_loss()[0]
        log.write("held_out", step=training.progress.steps, tokens=training.progress.tokens, windows=count, **losses)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder that the corpus stage wrote")
    parser.add_argument("--out", type=Path, required=True, help="folder for the resume point and log.jsonl")
    parser.add_argument("--resume", type=Path, help="folder of the resume point to go on from")
    parser.add_argument("--minutes", type=float, default=9.0, help="training time of all invocations together")
    parser.add_argument("--max-minutes", type=float, default=8.0, help="when this invocation stops, start-up included")
    parser.add_argument("--compiled", type=Path, help="file that keeps compiled functions from run to run")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--smoke", action="store_true", help="time every pass for a few steps, and nothing else")
    options = parser.parse_args()
    if not options.max_minutes > 0 or not options.minutes > 0:
        raise ConfigError(f"minutes is {options.minutes}, max-minutes {options.max_minutes}; both must be above 0")
    return options


if __name__ == "__main__":
    try:
        main()
    except ThalwegError as error:
        sys.exit(f"backbone: {error}")
