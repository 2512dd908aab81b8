"""Train, export, calibrate and measure the drafter of a checkpoint; tools/train/README.md shows the commands."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import torch
from tools.train.common.compiled import load_compiled, save_compiled
from tools.train.drafter.export import export
from tools.train.drafter.settings import with_drafter
from tools.train.drafter.smoke import smoke
from tools.train.drafter.study import Study, write_report
from tools.train.drafter.train import Plan, Run, trained

from thalweg.interfaces import ConfigError, ThalwegError
from thalweg.model import ModelConfig


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--seed", type=int, default=0)
    stages = parser.add_subparsers(dest="stage", required=True)

    train = stages.add_parser("train", help="train on a frozen backbone, going on from a resume point")
    train.add_argument("--checkpoint", type=Path, required=True, help="exported backbone")
    train.add_argument("--data", type=Path, required=True, help="folder of train.npy or train.xz")
    train.add_argument("--out", type=Path, required=True, help="folder of the resume point")
    train.add_argument("--minutes", type=float, default=6.0, help="training time in all")
    train.add_argument("--max-minutes", type=float, default=8.0, help="time of this invocation")
    train.add_argument("--compiled", type=Path, help="file that keeps compiled functions from run to run")
    train.add_argument("--smoke", action="store_true", help="try every part, print times, memory and kernels, and stop")

    export = stages.add_parser("export", help="write a checkpoint with the drafter")
    export.add_argument("--checkpoint", type=Path, required=True, help="exported backbone")
    export.add_argument("--resume-point", type=Path, required=True, help="folder that train wrote")
    export.add_argument("--out", type=Path, required=True, help="new folder of the checkpoint")

    measure = stages.add_parser("measure", help="fit confidence temperatures, then measure on other prompts")
    measure.add_argument("--checkpoint", type=Path, required=True, help="checkpoint with a drafter")
    measure.add_argument("--data", type=Path, required=True, help="folder of held_out.npy and evaluation.npy")
    measure.add_argument("--out", type=Path, required=True, help="folder of the temperatures and the figures")
    return parser.parse_args()


def run_train(options: argparse.Namespace, device: torch.device) -> None:
    """Train until time is over."""
    if not options.max_minutes > 0 or not options.minutes > 0:
        raise ConfigError(f"minutes is {options.minutes}, max-minutes {options.max_minutes}; both must be above 0")
    torch.set_float32_matmul_precision("high")
    plan = Plan(
        options.checkpoint, options.data, options.out, options.minutes, options.max_minutes, options.seed, device
    )
    if options.smoke:
        smoke(plan)
        return
    load_compiled(options.compiled)
    Run(plan).train()
    save_compiled(options.compiled)


def run_export(options: argparse.Namespace) -> None:
    """Write the checkpoint."""
    config = with_drafter(ModelConfig.from_file(options.checkpoint))
    total = export(options.checkpoint, config, trained(options.resume_point), options.out)
    print(f"{options.out}: {total:,} tensor bytes")


def run_measure(options: argparse.Namespace, device: torch.device) -> None:
    """Fit and measure."""
    study = Study(options.checkpoint, options.data, device, options.seed)
    report = study.measure(study.fit(options.out))
    write_report(options.out / "drafter.json", report)
    print(json.dumps(report, indent=1))


def main() -> None:
    """Run one stage."""
    options = parse()
    device = torch.device(options.device)
    if options.stage == "train":
        run_train(options, device)
    elif options.stage == "export":
        run_export(options)
    else:
        run_measure(options, device)


if __name__ == "__main__":
    try:
        main()
    except ThalwegError as error:
        sys.exit(f"drafter: {error}")
