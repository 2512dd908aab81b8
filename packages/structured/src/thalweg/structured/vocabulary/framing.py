"""The added tokens that a structural tag asks for, by text or as tokens."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

from thalweg.interfaces import RequestError, shown
from thalweg.structured.vocabulary import Vocabulary

_TEXT_FIELDS = ("begin", "end", "triggers", "separator", "value", "rules")
"""Their strings are the fixed text around what the model writes."""
_TOKEN_FIELDS = ("token", "exclude_tokens", "trigger_tokens")
"""Tokens by id or by text."""


class Framing(NamedTuple):
    """A structural tag that names tokens by id alone, and what it needs of the vocabulary."""

    source: str
    spelled: frozenset[int] = frozenset()
    """Added tokens whose text is part of fixed text: they may write it, and the same text where text is free."""
    named: frozenset[int] = frozenset()
    """Added tokens asked for as tokens: they are allowed there, and never as text."""


def framing_of(source: str, vocabulary: Vocabulary) -> Framing:
    """Read a structural tag. Raises RequestError if it is not JSON, or asks for a token that the vocabulary lacks."""
    try:
        tag = json.loads(source)
        named = set(_name_by_id(tag, vocabulary)) & vocabulary.added_ids
        source = json.dumps(tag)
    except RequestError:
        raise
    except (ValueError, RecursionError) as error:
        raise RequestError(f"invalid grammar: structural_tag: not JSON: {error}") from None
    fixed = "\0".join(_fixed_texts(tag))
    spelled = {token_id for text, token_id in vocabulary.added_texts.items() if text and text in fixed}
    end = {vocabulary.end_token_id}
    return Framing(source, frozenset(spelled - end), frozenset(named - spelled - end))


def _name_by_id(tag: Any, vocabulary: Vocabulary) -> Iterator[int]:
    """Replace texts of tokens by their ids; all ids in the tag."""
    for node in _nodes(tag):
        for field in _TOKEN_FIELDS:
            tokens = node.get(field)
            if isinstance(tokens, list):
                node[field] = [_id_of(token, vocabulary) for token in tokens]
                yield from node[field]
            elif tokens is not None:
                node[field] = _id_of(tokens, vocabulary)
                yield node[field]
        if node.get("type") == "token_dispatch" and isinstance(node.get("rules"), list):
            for rule in node["rules"]:
                if isinstance(rule, list) and rule:
                    rule[0] = _id_of(rule[0], vocabulary)
                    yield rule[0]


def _id_of(token: Any, vocabulary: Vocabulary) -> int:
    if isinstance(token, str):
        found = vocabulary.added_texts.get(token)
        if found is None:
            found = vocabulary.ids.get(token.encode(errors="replace"))
        if found is not None:
            return found
    elif isinstance(token, int) and not isinstance(token, bool) and 0 <= token < vocabulary.vocab_size:
        return token
    raise RequestError(f"invalid grammar: structural_tag: token {shown(token)} is not in the vocabulary")


def _fixed_texts(tag: Any) -> Iterator[str]:
    for node in _nodes(tag):
        for field in _TEXT_FIELDS:
            texts = node.get(field)
            for text in texts if isinstance(texts, list) else [texts]:
                if isinstance(text, list) and text:  # a rule: its text, and what follows that
                    text = text[0]
                if isinstance(text, str):
                    yield text


def _nodes(tag: Any) -> Iterator[dict[str, Any]]:
    """Every object of the tag; schemas inside it are not its own."""
    pending = [tag]
    while pending:
        node = pending.pop()
        if isinstance(node, dict):
            yield node
            pending += [value for field, value in node.items() if field != "json_schema"]
        elif isinstance(node, list):
            pending += node
