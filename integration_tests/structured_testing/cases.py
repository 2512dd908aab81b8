"""The corpus as requests: what an output must look like, and an independent opinion whether it does."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jsonschema

from structured_testing.earley import Recogniser
from structured_testing.grammars import GRAMMARS
from structured_testing.regexes import REGEXES
from structured_testing.schemas import SCHEMAS
from thalweg.interfaces import GrammarSpec


@dataclass(frozen=True, slots=True)
class Case:
    """One constraint."""

    name: str
    spec: GrammarSpec
    find_fault: Callable[[str], str | None]
    """What is wrong with a text, by code that knows nothing of masks; None = nothing."""


def json_case(name: str, schema: Any, **options: Any) -> Case:
    """JSON by a schema, checked by the package jsonschema. Draft 2020-12; of the formats uuid is checked."""
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema, format_checker=jsonschema.FormatChecker(["uuid"]))

    def find_fault(text: str) -> str | None:
        try:
            value = json.loads(text)
        except ValueError as error:
            return f"not JSON: {error}"
        fault = next(validator.iter_errors(value), None)
        return None if fault is None else str(fault.message)

    return Case(name, GrammarSpec.json(schema, **options), find_fault)


def regex_case(name: str, pattern: str) -> Case:
    """Text by a regular expression, checked by the standard library's."""
    wanted = re.compile(pattern)
    return Case(
        name, GrammarSpec.regex(pattern), lambda text: None if wanted.fullmatch(text) else f"{pattern} does not match"
    )


def ebnf_case(name: str, source: str) -> Case:
    """Text by a grammar, checked by Earley's algorithm."""
    recogniser = Recogniser(source)
    return Case(
        name, GrammarSpec.ebnf(source), lambda text: None if recogniser.accepts(text) else "not derived from the root"
    )


CORPUS = (
    *(json_case(f"json {name}", schema) for name, schema in SCHEMAS.items()),
    *(regex_case(f"regex {name}", pattern) for name, (pattern, _) in REGEXES.items()),
    *(ebnf_case(f"ebnf {name}", grammar.source) for name, grammar in GRAMMARS.items()),
)


def endless(size: int = 60) -> GrammarSpec:
    """Objects that all refer to each other: nothing is wrong with them, but compiling takes longer than one waits."""
    properties = {f"p{place}": {"$ref": f"#/$defs/d{place}"} for place in range(size)}
    objects = {f"d{place}": {"type": "object", "properties": properties} for place in range(size)}
    return GrammarSpec.json({"$defs": objects, "$ref": "#/$defs/d0"})
