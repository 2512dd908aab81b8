"""Make the training text of the small model, one stage after the other: fetch, clean, tokenizer, pack."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from tools.train.corpus import documents, fetch, pack, repetitions, streams, tokenizer
from tools.train.corpus.clean import Deduplicator
from tools.train.corpus.documents import Document
from tools.train.corpus.notice import notice
from tools.train.corpus.sources import read_sources

from thalweg.interfaces import ThalwegError


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tools.train.corpus", description=__doc__)
    parser.add_argument("stage", choices=("fetch", "clean", "tokenizer", "pack"))
    parser.add_argument("--data", type=Path, required=True, help="folder of the files that training reads")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def run_fetch(data: Path, archives: Path) -> None:
    """Fetch the archives that are missing, and record all in sources.json."""
    sources = read_sources()
    fetch.fetch(sources, archives)
    fetch.record(sources, data / "sources.json")
    print(f"{len(sources)} archives, {sum((archives / source.archive).stat().st_size for source in sources):,} bytes")


def run_clean(data: Path, archives: Path, text: Path) -> None:
    """Clean and split the text, and write NOTICE."""
    sources = read_sources()
    deduplicator = Deduplicator()
    train: list[Document] = []
    held_out: list[Document] = []
    for source in sources:
        found = documents.read_source(source, archives, deduplicator)
        apart: list[Document] = []
        if source.training_only:
            kept = repetitions.without_copies(found, held_out)
        else:
            kept, apart = documents.split(list(found))
        print(f"{source.label}: {amount(kept)} to train on, {amount(apart)} held out", flush=True)
        train += kept
        held_out += apart
    documents.write(train, text / "train.jsonl")
    documents.write(held_out, text / "held_out.jsonl")
    (data / "NOTICE").write_text(notice(sources, archives), encoding="utf-8")
    print(f"all: {amount(train)} to train on, {amount(held_out)} held out")


def run_tokenizer(data: Path, text: Path, seed: int) -> None:
    """Train tokenizer.json."""
    shaping = {source.label for source in read_sources() if not source.training_only}
    items = [item for item in documents.read(text / "train.jsonl") if item.source in shaping]
    trained = tokenizer.train(items, seed)
    trained.save(str(data / "tokenizer.json"))
    print(f"{trained.get_vocab_size():,} entries")


def run_pack(data: Path, text: Path, seed: int) -> None:
    """Write the streams, the boundaries of held-out documents, and the evaluation windows."""
    trained = tokenizer.read(data / "tokenizer.json")
    held_out = pack.pack(documents.read(text / "held_out.jsonl"), trained, seed)
    windows = pack.evaluation_windows(held_out.tokens, seed)
    num_bytes = pack.token_bytes(trained)[windows[:, 1:]].sum(1)
    np.save(data / "held_out.npy", held_out.tokens)
    write_json(data / "held_out.json", pack.boundaries(held_out))
    np.save(data / "evaluation.npy", windows)
    write_json(data / "evaluation.json", {"seed": seed, "bytes": num_bytes.tolist()})
    print(f"held out: {len(held_out.tokens):,} tokens", flush=True)
    print(f"evaluation: {windows[:, 1:].size:,} tokens, {num_bytes.sum():,} bytes", flush=True)
    train = pack.pack(documents.read(text / "train.jsonl"), trained, seed)
    np.save(data / "train.npy", train.tokens)
    streams.compress(train.tokens, data, "train")
    print(f"to train on: {len(train.tokens):,} tokens")


def write_json(path: Path, content: object) -> None:
    """One value to a line, as far as it is a list."""
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def amount(items: Sequence[Document]) -> str:
    """Files and size, for people."""
    return f"{len(items)} files of {sum(item.num_bytes for item in items) / 1e6:.2f} MB"


def main() -> None:
    """Run one stage."""
    options = parse()
    data: Path = options.data
    text = data / "corpus"
    archives = text / "archives"
    archives.mkdir(parents=True, exist_ok=True)
    stages: dict[str, Callable[[], None]] = {
        "fetch": lambda: run_fetch(data, archives),
        "clean": lambda: run_clean(data, archives, text),
        "tokenizer": lambda: run_tokenizer(data, text, options.seed),
        "pack": lambda: run_pack(data, text, options.seed),
    }
    stages[options.stage]()


if __name__ == "__main__":
    try:
        main()
    except (ThalwegError, OSError) as error:
        sys.exit(f"corpus: {error}")
