"""Compiled grammars as bytes, which are read only by the library version and for the vocabulary they were made for."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from thalweg.interfaces import ConfigError, shown
from thalweg.structured.library import (
    CompiledGrammar,
    TokenizerInfo,
    get_serialization_version,
    library_version,
    plain_message,
)
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
    for name, expected in origin(vocabulary).items():
        if found.get(name) != expected:
            raise ConfigError(
                f"the compiled grammar was made with {name} {shown(found.get(name))}; here it is {shown(expected)}"
            )


def pack(compiled: CompiledGrammar, vocabulary: Vocabulary) -> bytes:
    """A grammar, compiled for this vocabulary, as bytes: a line that says where it belongs, and the grammar."""
    body = compiled.serialize_json().encode()
    head = {**origin(vocabulary), "sha256": hashlib.sha256(body).hexdigest()}
    return _MAGIC + json.dumps(head).encode() + b"\n" + body


def unpack(data: bytes, vocabulary: Vocabulary, info: TokenizerInfo) -> CompiledGrammar:
    """The grammar that `pack` wrote, with masks equal to those of the original.

    info: the tokenizer info that it was compiled with, made from this vocabulary.
    Raises ConfigError if the bytes are damaged, or come from another version of the library or another vocabulary.
    """
    line, separator, body = data.partition(b"\n")
    if not line.startswith(_MAGIC) or not separator:
        raise ConfigError("these bytes are not a compiled grammar of this format")
    try:
        head = json.loads(line[len(_MAGIC) :])
    except ValueError:
        raise ConfigError("the compiled grammar is damaged: its first line cannot be read") from None
    check_origin(head, vocabulary)
    if hashlib.sha256(body).hexdigest() != head.get("sha256"):
        raise ConfigError("the compiled grammar is damaged: its bytes do not have the checksum of its first line")
    try:
        return CompiledGrammar.deserialize_json(body.decode(), info)
    except RuntimeError as error:
        raise ConfigError(f"the compiled grammar does not fit: {plain_message(error)}") from error
