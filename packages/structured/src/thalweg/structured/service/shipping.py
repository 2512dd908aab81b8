"""Compiled grammars as bytes, which are read only by the library version and for the vocabulary they were made for."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from typing import Any

from thalweg.interfaces import ConfigError, GrammarSpec, shown
from thalweg.structured.library import (
    CompiledGrammar,
    TokenizerInfo,
    get_serialization_version,
    library_version,
    plain_message,
)
from thalweg.structured.service.jobs import key_of
from thalweg.structured.vocabulary import Vocabulary

_MAGIC = b"thalweg-grammar 1 "


def origin(vocabulary: Vocabulary) -> dict[str, str]:
    """What two processes must have in common to exchange compiled grammars, or to expect equal ones."""
    return {
        "xgrammar": library_version(),
        "serialization": get_serialization_version(),
        "vocabulary": vocabulary.fingerprint,
    }


def check_origin(found: Mapping[str, Any], vocabulary: Vocabulary) -> None:
    """Raise ConfigError naming what differs between the origin of a grammar and this process."""
    _check_same(found, origin(vocabulary))


def pack(compiled: CompiledGrammar, spec: GrammarSpec, vocabulary: Vocabulary) -> bytes:
    """A grammar as bytes: a line that says where it belongs, and the grammar.

    spec, vocabulary: what it was compiled from; trigger and bound do not matter.
    """
    body = compiled.serialize_json().encode()
    head = {**origin(vocabulary), "specification": _digest_of(spec), "sha256": hashlib.sha256(body).hexdigest()}
    return _MAGIC + json.dumps(head).encode() + b"\n" + body


def unpack(data: bytes, spec: GrammarSpec, vocabulary: Vocabulary, info: TokenizerInfo) -> CompiledGrammar:
    """The grammar that `pack` wrote, with masks equal to those of the original.

    info: the tokenizer info that a grammar of this specification is compiled with, made from the vocabulary.
    Raises ConfigError if the bytes are damaged, or come from another version of the library, another vocabulary or
    another specification.
    """
    line, separator, body = data.partition(b"\n")
    if not line.startswith(_MAGIC) or not separator:
        raise ConfigError("these bytes are not a compiled grammar of this format")
    try:
        head = json.loads(line[len(_MAGIC) :])
    except (ValueError, RecursionError):
        head = None
    if not isinstance(head, dict):
        raise ConfigError("the compiled grammar is damaged: its first line cannot be read")
    check_origin(head, vocabulary)
    _check_same(head, {"specification": _digest_of(spec)})
    if hashlib.sha256(body).hexdigest() != head.get("sha256"):
        raise ConfigError("the compiled grammar is damaged: its bytes do not have the checksum of its first line")
    try:
        return CompiledGrammar.deserialize_json(body.decode(), info)
    except (RuntimeError, UnicodeDecodeError) as error:
        raise ConfigError(f"the compiled grammar does not fit: {plain_message(error)}") from error


def _check_same(found: Mapping[str, Any], expected: Mapping[str, str]) -> None:
    for name, value in expected.items():
        if found.get(name) != value:
            made_with = shown(found.get(name))
            raise ConfigError(f"the compiled grammar was made with {name} {made_with}; here it is {shown(value)}")


def _digest_of(spec: GrammarSpec) -> str:
    return hashlib.sha256(json.dumps(dataclasses.asdict(key_of(spec))).encode()).hexdigest()
