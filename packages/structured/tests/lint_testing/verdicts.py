"""What lint and the grammar library say of a specification."""

from __future__ import annotations

from typing import Any

from matcher_testing.masks import says
from matcher_testing.vocabularies import BYTES_END, byte_info

from thalweg.interfaces import GrammarSpec, RequestError
from thalweg.structured.compile import compile_grammar
from thalweg.structured.lint import check


def refusal(spec: GrammarSpec) -> str | None:
    """Why lint refuses a specification; None if it does not."""
    try:
        check(spec)
    except RequestError as error:
        return str(error)
    return None


def schema_refusal(schema: Any, **options: Any) -> str | None:
    return refusal(GrammarSpec.json(schema, **options))


def library_accepts(spec: GrammarSpec, text: str) -> bool:
    """Whether the library, without lint, admits the text."""
    return says(spec, byte_info(), text.encode(), BYTES_END)


def library_refusal(spec: GrammarSpec) -> str | None:
    """Why the library does not compile a specification; None if it does."""
    try:
        compile_grammar(spec, byte_info())
    except RequestError as error:
        return str(error)
    return None
