"""How much of a stored prefix a prompt may use, and from what it goes on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from thalweg.cache.store.keys import CHUNK_TOKENS, block_key, state_key
from thalweg.interfaces import BlobStore, ConfigError, PrefixIndex, PrefixMatch


@dataclass(frozen=True, slots=True)
class HitRule:
    """What limits a hit: the last window + max_backtracking tokens are computed, so that consumer windows are whole."""

    window: int
    max_backtracking: int
    may_restore_state: bool = True
    """Stored state lacks the consumers' windows: it can be used only where prefill rebuilds them."""
    may_replay: bool = True

    def __post_init__(self) -> None:
        if self.window < 1:
            raise ConfigError(f"window is {self.window}; at least 1 is needed")
        if self.max_backtracking < 0:
            raise ConfigError(f"max_backtracking is {self.max_backtracking}; at least 0 is needed")

    def longest(self, prompt_length: int) -> int:
        """Tokens that a hit can have at most, a multiple of 128; at least one token is left to compute."""
        return max(0, (prompt_length - self.window - self.max_backtracking) // CHUNK_TOKENS * CHUNK_TOKENS)

    def choose(self, match: PrefixMatch, prompt_length: int) -> Hit:
        """The hit that leaves the fewest tokens to compute; of two equal ones, that with the exact state."""
        longest = min(self.longest(prompt_length), match.num_chunks * CHUNK_TOKENS)
        anchors = [anchor * CHUNK_TOKENS for anchor in match.anchors if anchor * CHUNK_TOKENS <= longest]
        exact = max(anchors, default=0) if self.may_restore_state else 0
        # A hit no longer than the window saves nothing: all of it would be replayed.
        replayed = longest if self.may_replay and longest > self.window else 0
        if replayed and replayed - self.window > exact:
            return Hit(replayed, restores_state=False, first_computed=replayed - self.window)
        return Hit(exact, restores_state=exact > 0, first_computed=exact)


@dataclass(frozen=True, slots=True)
class Hit:
    """A reused prefix."""

    num_tokens: int
    """Tokens whose blocks are loaded; 0 is no hit."""
    restores_state: bool
    """Whether window state comes from the store; otherwise the last window of the hit is replayed."""
    first_computed: int
    """Position of the first token that runs through the model."""


def find_prefix(index: PrefixIndex, store: BlobStore, chunk_keys: Sequence[bytes], ttl_class: str) -> PrefixMatch:
    """What the index knows of the prefix, or the store: an index starts empty, a store may be older than the process.

    What only the store knew is published in the given class.
    """
    match = index.match(chunk_keys)
    if match.num_chunks == len(chunk_keys):
        return match
    held = store.contains([block_key(key) for key in chunk_keys])
    count = held.index(False) if False in held else len(held)
    if count <= match.num_chunks:
        return match
    states = store.contains([state_key(key) for key in chunk_keys[:count]])
    index.publish(chunk_keys[:count], [end for end, has in enumerate(states, 1) if has], ttl_class)
    return index.match(chunk_keys)
