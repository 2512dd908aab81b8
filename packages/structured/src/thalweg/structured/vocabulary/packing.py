"""A vocabulary as one byte string, every part after its length: equal strings mean equal vocabularies."""

from __future__ import annotations

import struct
from collections.abc import Collection, Sequence

import numpy as np

from thalweg.interfaces import ConfigError

_MAGIC = b"thalweg vocabulary 1\n"
_COUNTS = struct.Struct("<4Q")
"""vocab_size, end_token_id, number of tokens, number of added ids."""


def pack(tokens: Sequence[bytes], vocab_size: int, end_token_id: int, added_ids: Collection[int]) -> bytes:
    """The parts as bytes, the same on every machine."""
    lengths = np.array([len(token) for token in tokens], "<u4")
    added = np.array(sorted(added_ids), "<u4")
    counts = _COUNTS.pack(vocab_size, end_token_id, len(tokens), len(added))
    return b"".join([_MAGIC, counts, lengths.tobytes(), added.tobytes(), *tokens])


def unpack(data: bytes) -> tuple[tuple[bytes, ...], int, int, frozenset[int]]:
    """Tokens, vocab_size, end_token_id and added ids, as `pack` wrote them. Raises ConfigError for anything else."""
    start = len(_MAGIC) + _COUNTS.size
    if len(data) < start or not data.startswith(_MAGIC):
        raise ConfigError(f"{len(data)} bytes are no vocabulary; it begins with {_MAGIC!r} and its counts")
    vocab_size, end_token_id, num_tokens, num_added = _COUNTS.unpack_from(data, len(_MAGIC))
    text = start + 4 * (num_tokens + num_added)
    if len(data) < text:
        raise ConfigError(
            f"a vocabulary of {len(data)} bytes cannot have {num_tokens} tokens and {num_added} added ids"
        )
    lengths = np.frombuffer(data, "<u4", num_tokens, start)
    added = np.frombuffer(data, "<u4", num_added, start + 4 * num_tokens)
    ends = (text + np.cumsum(lengths, dtype=np.uint64)).tolist()
    if len(data) != (ends[-1] if ends else text):
        raise ConfigError(f"a vocabulary of {len(data)} bytes does not end with its {num_tokens} tokens")
    tokens = tuple(data[begin:end] for begin, end in zip([text, *ends[:-1]], ends, strict=bool(ends)))
    return tokens, vocab_size, end_token_id, frozenset(added.tolist())
