"""Measure a checkpoint on held-out text: `python -m tools.train.evaluate --checkpoint DIR --data DIR --out FILE`."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import torch
from tools.train.evaluate import ablations, attention_mass, long_context, losses, routing, samples
from tools.train.evaluate.models import Subject
from tools.train.evaluate.report import Report
from tools.train.evaluate.windows import Windows, read_tokenizer

from thalweg.interfaces import ThalwegError

MEASURES = ("losses", "ablations", "indexer", "routing", "long-context", "samples")


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--checkpoint", type=Path, required=True, help="exported checkpoint")
    parser.add_argument("--data", type=Path, required=True, help="folder of evaluation.npy and held_out.npy")
    parser.add_argument("--out", type=Path, required=True, help="JSON file of every figure")
    parser.add_argument("--master", type=Path, help="resume point of the backbone, to tell what storing it costs")
    parser.add_argument("--windows", type=int, help="so many of the windows; all without it")
    parser.add_argument("--measures", nargs="+", choices=MEASURES, default=MEASURES, help="all without it")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    return parser.parse_args()


def main() -> None:
    """Run the measures one after the other."""
    options = parse()
    subject = Subject.open(options.checkpoint, options.device)
    master = None if options.master is None else subject.with_masters(options.master)
    windows = Windows.read(options.data, options.checkpoint, options.windows)
    report = Report()

    def tell_long_context() -> None:
        documents = long_context.read_documents(options.data, subject.config.max_position_embeddings)
        report.add(long_context.measure(subject, documents))

    def tell_samples() -> None:
        written = samples.write_samples(subject, read_tokenizer(options.checkpoint))
        for sample in written:
            print(f"--- temperature {sample.temperature:g}: {sample.prompt!r}\n{sample.prompt}{sample.text}")
        report.keep("samples", [asdict(sample) for sample in written])

    work: dict[str, Callable[[], None]] = {
        "losses": lambda: report.add(losses.measure(subject, master, windows, report.keep)),
        "ablations": lambda: report.add(ablations.measure(subject, windows)),
        "indexer": lambda: report.add(attention_mass.measure(subject, windows)),
        "routing": lambda: report.add(routing.measure(subject, windows)),
        "long-context": tell_long_context,
        "samples": tell_samples,
    }
    for name in options.measures:
        start = time.perf_counter()
        work[name]()
        print(f"({name}: {time.perf_counter() - start:.1f} s)", flush=True)
        report.write(options.out, checkpoint=str(options.checkpoint), device=str(options.device))


if __name__ == "__main__":
    try:
        main()
    except ThalwegError as error:
        sys.exit(f"evaluate: {error}")
