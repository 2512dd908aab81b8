"""One specification to one compiled grammar, in the calling thread."""

from __future__ import annotations

import json
from time import thread_time

import numpy as np

from thalweg.interfaces import GrammarSpec, RequestError, shown
from thalweg.structured.bitmask import allows_any, num_words
from thalweg.structured.characters import narrowed
from thalweg.structured.library import (
    CompiledGrammar,
    Grammar,
    GrammarCompiler,
    GrammarMatcher,
    TokenizerInfo,
    plain_message,
)
from thalweg.structured.patterns import respelled_source, respelled_tag

MAX_FIRST_MASK_S = 0.05
"""Seconds of the processor, for what takes microseconds; everybody in a step waits for the masks of all."""


def compile_grammar(spec: GrammarSpec, info: TokenizerInfo) -> CompiledGrammar:
    """The grammar of the specification for the vocabulary; the same result every time.

    It takes one thread, milliseconds for most grammars, and without any limit for some. Raises RequestError, which
    says whether the grammar is invalid, needs more memory than there is, admits nothing, or is too slow to use.
    """
    compiler = GrammarCompiler(info, max_threads=1, cache_enabled=False)
    try:
        compiled = compiler.compile_grammar(narrowed(_READ[spec.kind](spec)))
    except RequestError:
        raise
    except MemoryError as error:
        raise RequestError(f"out of memory: {spec.kind}: {plain_message(error)}") from error
    except RuntimeError as error:
        category = "out of memory" if "bad_alloc" in str(error) else "invalid grammar"
        raise RequestError(f"{category}: {spec.kind}: {plain_message(error)}") from error
    except Exception as error:
        raise RequestError(f"unknown error: {spec.kind}: {type(error).__name__}: {plain_message(error)}") from error
    _check_first_mask(compiled, info.vocab_size, spec.kind)
    return compiled


def _json(spec: GrammarSpec) -> Grammar:
    source = respelled_source(spec.source)
    if not spec.any_whitespace:
        return Grammar.from_json_schema(source, any_whitespace=False, strict_mode=spec.strict)
    if spec.max_whitespace == 0:  # the library's own limit begins at 1
        return Grammar.from_json_schema(source, any_whitespace=False, separators=(",", ":"), strict_mode=spec.strict)
    return Grammar.from_json_schema(source, strict_mode=spec.strict, max_whitespace_cnt=spec.max_whitespace)


def _regex(spec: GrammarSpec) -> Grammar:
    return Grammar.from_regex(spec.source)


def _ebnf(spec: GrammarSpec) -> Grammar:
    return Grammar.from_ebnf(spec.source)


def _choice(spec: GrammarSpec) -> Grammar:
    return Grammar.from_ebnf("root ::= " + " | ".join(quoted(choice) for choice in choices_of(spec.source)))


def _structural_tag(spec: GrammarSpec) -> Grammar:
    return Grammar.from_structural_tag(respelled_tag(spec.source))


_READ = {"json": _json, "regex": _regex, "ebnf": _ebnf, "choice": _choice, "structural_tag": _structural_tag}


def choices_of(source: str) -> list[str]:
    """The texts of a JSON list of strings. Raises RequestError for anything else."""
    try:
        choices = json.loads(source)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"invalid grammar: choice: not JSON: {error}") from None
    if not isinstance(choices, list) or not choices or not all(isinstance(choice, str) for choice in choices):
        raise RequestError(f"invalid grammar: choice: {shown(choices)} is not a list of strings with at least one")
    for choice in choices:
        if any("\ud800" <= character <= "\udfff" for character in choice):
            raise RequestError(f"invalid grammar: choice: {shown(choice)} is not valid Unicode")
    return choices


def quoted(text: str) -> str:
    """The text as a literal of EBNF."""
    plain = (c if c.isascii() and c.isalnum() else f"\\U{ord(c):08x}" for c in text)
    return f'"{"".join(plain)}"'


def _check_first_mask(compiled: CompiledGrammar, vocab_size: int, kind: str) -> None:
    """Refuse a grammar that only leads back to itself, and one whose masks everybody would have to wait for."""
    mask = np.zeros((1, num_words(vocab_size)), np.int32)
    matcher = GrammarMatcher(compiled)
    began_s = thread_time()
    matcher.fill_next_token_bitmask(mask)
    taken_s = thread_time() - began_s
    if taken_s > MAX_FIRST_MASK_S:
        raise RequestError(
            f"too slow: {kind}: the first mask of the grammar takes {taken_s:.2f} s of the processor; at most "
            f"{MAX_FIRST_MASK_S:g} s are allowed"
        )
    if not allows_any(mask[0], vocab_size):
        raise RequestError(f"invalid grammar: {kind}: no token of the vocabulary can begin it")
