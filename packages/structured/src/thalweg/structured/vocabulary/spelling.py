"""What bytes a tokenizer's spelling of a token stands for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from thalweg.interfaces import ConfigError


def reader_of(decoder: Any) -> Callable[[str], bytes]:
    """The function from a token to its bytes, for a decoder of `tokenizers`.

    ByteLevel and Fuse (tokens are plain text) make text of one token at a time. Raises ConfigError for others.
    """
    name = "none" if decoder is None else type(decoder).__name__
    if name == "ByteLevel":
        return byte_level
    if name == "Fuse":
        return str.encode
    raise ConfigError(
        f"the decoder of the tokenizer is {name}; ByteLevel and Fuse are supported, and for others Vocabulary takes "
        "the bytes of every token"
    )


def byte_level(token: str) -> bytes:
    """The bytes of a token of byte-level BPE; one that is spelled in plain text stands for itself."""
    try:
        return bytes(_BYTE_OF_CHARACTER[character] for character in token)
    except KeyError:
        return token.encode()


def _alphabet() -> dict[str, int]:
    """Printable Latin-1 characters stand for themselves, the other bytes for U+0100 and up in order."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = sorted(set(range(256)) - set(printable))
    return {chr(byte): byte for byte in printable} | {chr(0x100 + i): byte for i, byte in enumerate(others)}


_BYTE_OF_CHARACTER = _alphabet()
