"""Random outputs that a grammar admits, and what an independent validator says of them."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from random import Random
from typing import Any

import jsonschema
import numpy as np
from lint_testing.random_schemas import document
from matcher_testing.vocabularies import BYTES_END, byte_info
from numpy.typing import NDArray

from thalweg.interfaces import GrammarSpec, RequestError
from thalweg.structured import GrammarMatcher
from thalweg.structured.compile import compile_grammar
from thalweg.structured.lint import check

_CLOSING, _DULL = frozenset(b'"]}'), frozenset(b" \t\r\n\\")


@dataclass
class Tally:
    """Of many schemas."""

    num_refused: int = 0
    num_compiled: int = 0
    num_outputs: int = 0
    uncompiled: list[str] = field(default_factory=list)
    """Schemas that lint let through and the library did not."""


def check_schemas(seed: int, count: int, num_outputs: int = 10) -> Tally:
    """Assert of random schemas that whatever they admit is valid, unless lint refuses them or warns of an overlap."""
    rng = Random(seed)
    tally = Tally()
    for _ in range(count):
        schema = document(rng)
        spec = GrammarSpec.json(schema, strict=rng.random() < 0.8, max_whitespace=2)
        try:
            warnings = check(spec)
        except RequestError:
            tally.num_refused += 1
            continue
        try:
            compiled = compile_grammar(spec, byte_info())
        except RequestError as error:
            tally.uncompiled.append(f"{error}: {schema}")
            continue
        tally.num_compiled += 1
        may_overlap = any("overlap" in warning for warning in warnings)
        matcher = GrammarMatcher(compiled)
        for _ in range(num_outputs):
            text = random_output(matcher.fresh(), rng)
            if text is not None:
                tally.num_outputs += 1
                assert_valid(schema, text, may_overlap=may_overlap)
    return tally


def random_output(matcher: Any, rng: Random, longest: int = 250) -> bytes | None:
    """What the matcher admits, mostly short; None for outputs that do not end, or are not Unicode text."""
    output = bytearray()
    bitmask = np.zeros((1, BYTES_END // 32 + 1), np.int32)
    while len(output) < longest:
        matcher.fill_bitmask(bitmask, 0)
        allowed = _tokens_of(bitmask[0])
        assert allowed, bytes(output)
        if BYTES_END in allowed and rng.random() < 0.5:
            break
        closing, lively = [t for t in allowed if t in _CLOSING], [t for t in allowed if t not in _DULL]
        token_id = rng.choice(rng.choice([closing, lively, allowed]) or allowed)
        if token_id == BYTES_END:
            break
        assert matcher.accept(token_id)
        output.append(token_id)
    else:
        return None
    try:
        output.decode()
    except UnicodeDecodeError:  # patterns with '.' admit some bytes that are no text; detokenisation replaces them
        return None
    return bytes(output)


def assert_valid(schema: Any, text: bytes, *, may_overlap: bool) -> None:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise AssertionError(f"{schema} admits {text!r}: {error}") from None
    if may_overlap:
        return
    try:
        errors = [error.message for error in jsonschema.Draft202012Validator(schema).iter_errors(value)]
    except RecursionError:  # the validator follows anyOf that refers to itself without an end
        return
    assert errors == [], f"{schema} admits {text!r}"


def _tokens_of(mask: NDArray[np.int32]) -> list[int]:
    bits = np.unpackbits(mask.view(np.uint8), bitorder="little")[: BYTES_END + 1]
    return list(map(int, np.flatnonzero(bits)))
