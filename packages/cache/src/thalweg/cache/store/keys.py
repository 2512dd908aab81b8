"""Names of stored prefixes: a hash chain over chunks of 128 tokens, apart for each model, cache format and tenant."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from thalweg.interfaces import ConfigError, shown

CHUNK_TOKENS = 128
"""Tokens of a chunk: one block, and the grain at which window state is stored."""
KEY_BYTES = 32
_ROOT, _CHUNK, _BLOCK, _STATE = b"thalweg.root.1", b"thalweg.chunk.1", b"thalweg.block.1", b"thalweg.state.1"


@dataclass(frozen=True, slots=True)
class ImageSpan:
    """An image among the tokens: equal placeholder tokens mean different things under different images."""

    begin: int
    """First position of the image's placeholder tokens."""
    length: int
    digest: bytes
    """Hash of the image as the model sees it."""


class KeySpace:
    """The keys of one model, cache format and tenant. Keys of two spaces never meet.

    fingerprint: what stored bytes mean, model included. salt: the tenant's secret; with `salt_required` an empty one
    raises ConfigError.
    """

    def __init__(self, fingerprint: bytes, salt: bytes = b"", *, salt_required: bool = False) -> None:
        if not fingerprint:
            raise ConfigError("fingerprint is empty; it must name the model and the cache format")
        if salt_required and not salt:
            raise ConfigError("salt is empty; this engine keeps tenants apart and needs one from each request")
        self._root = _digest(_ROOT, struct.pack("<Q", len(fingerprint)), fingerprint, salt)

    def chunk_keys(
        self, token_ids: Sequence[int], images: Sequence[ImageSpan] = (), known: Sequence[bytes] = ()
    ) -> list[bytes]:
        """The key of every whole chunk; each stands for all tokens up to its end.

        known: keys of leading chunks that were made before, of the same tokens. Raises ConfigError for an id outside
        0..2^32-1.
        """
        count = len(token_ids) // CHUNK_TOKENS
        keys = [*known[:count]]
        first = len(keys) * CHUNK_TOKENS
        tokens = _as_words(token_ids[first : count * CHUNK_TOKENS])
        for begin in range(first, count * CHUNK_TOKENS, CHUNK_TOKENS):
            parent = keys[-1] if keys else self._root
            words = tokens[begin - first : begin - first + CHUNK_TOKENS].tobytes()
            keys.append(_digest(_CHUNK, parent, words, *_images_within(images, begin)))
        return keys


def block_key(chunk_key: bytes) -> bytes:
    """The blob key of a chunk's block."""
    return _digest(_BLOCK, chunk_key)


def state_key(chunk_key: bytes) -> bytes:
    """The blob key of the window state at a chunk's end."""
    return _digest(_STATE, chunk_key)


def _as_words(token_ids: Sequence[int]) -> NDArray[np.uint32]:
    ids = np.asarray(token_ids, np.int64)
    if ids.size and not 0 <= ids.min() <= ids.max() < 2**32:
        raise ConfigError(f"token_ids hold {shown(int(ids.min()))}..{shown(int(ids.max()))}; ids are in 0..2^32-1")
    return ids.astype("<u4")


def _images_within(images: Sequence[ImageSpan], begin: int) -> list[bytes]:
    """The images that a chunk meets, each with where its tokens start relative to the chunk."""
    end = begin + CHUNK_TOKENS
    met = (image for image in images if image.begin < end and begin < image.begin + image.length)
    parts: list[bytes] = []
    for image in sorted(met, key=lambda image: image.begin):
        parts += [struct.pack("<qQQ", image.begin - begin, image.length, len(image.digest)), image.digest]
    return parts


def _digest(domain: bytes, *parts: bytes) -> bytes:
    """BLAKE2b of the parts; `domain` keeps the kinds of key apart. Every part but the last has a length of its own."""
    state = hashlib.blake2b(digest_size=KEY_BYTES, person=domain)
    for part in parts:
        state.update(part)
    return state.digest()
