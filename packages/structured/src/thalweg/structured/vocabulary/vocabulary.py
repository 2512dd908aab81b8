"""The bytes of every token: what a grammar over text needs to know of a tokenizer."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

from thalweg.interfaces import ConfigError, shown
from thalweg.structured.vocabulary.packing import pack, unpack
from thalweg.structured.vocabulary.spelling import reader_of

if TYPE_CHECKING:
    from thalweg.structured.library import TokenizerInfo

_UNWRITABLE = b"\xff"
"""No text has this byte, so no grammar over text allows a token that begins with it."""

_LARGEST = 2**31 - 1
"""The grammar library counts tokens with 32 bits."""


class AnyTokenizer(Protocol):
    """What is asked of a tokenizer; `tokenizers.Tokenizer` has it."""

    decoder: Any

    def get_vocab(self, with_added_tokens: bool = True) -> Mapping[str, int]:
        """Token -> id."""

    def get_added_tokens_decoder(self) -> Mapping[int, Any]:
        """Id -> added token, special or not."""


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """Tokens as bytes, and which of them are not text. Raises ConfigError for parts that contradict each other."""

    tokens: tuple[bytes, ...]
    """By id, at most vocab_size. An empty one, and every id from their number on, is never allowed."""
    vocab_size: int
    """Columns of the logits."""
    end_token_id: int
    """Ends an output; allowed where the grammar allows the end."""
    added_ids: frozenset[int] = frozenset()
    """Markers, whatever their bytes look like; never allowed as text."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "tokens", tuple(self.tokens))
        object.__setattr__(self, "added_ids", frozenset(self.added_ids))
        for token in self.tokens:
            if not isinstance(token, bytes):
                raise ConfigError(f"token {shown(token)} is {type(token).__name__}; tokens are bytes")
        if not _is_id(self.vocab_size) or not len(self.tokens) <= self.vocab_size:
            raise ConfigError(
                f"vocab_size is {shown(self.vocab_size)}; there are {len(self.tokens)} tokens, and it must be an "
                f"integer from their number to {_LARGEST}"
            )
        if not _is_id(self.end_token_id) or not self.end_token_id < self.vocab_size:
            raise ConfigError(f"end_token_id is {shown(self.end_token_id)}; it must be 0 to {self.vocab_size - 1}")
        for token_id in self.added_ids:
            if not _is_id(token_id) or not token_id < len(self.tokens):
                raise ConfigError(f"added id {shown(token_id)} is none of the {len(self.tokens)} tokens")

    @classmethod
    def from_tokenizer(cls, tokenizer: AnyTokenizer, *, vocab_size: int, end_token_id: int) -> Vocabulary:
        """The vocabulary of a `tokenizers.Tokenizer` with the decoder ByteLevel, or Fuse (tokens are plain text).

        All of its added tokens are markers. Ids from vocab_size on are left out: logits have no columns for them.
        Raises ConfigError for another decoder.
        """
        to_bytes = reader_of(tokenizer.decoder)
        added = {
            token_id: str(token.content).encode()
            for token_id, token in tokenizer.get_added_tokens_decoder().items()
            if token_id < vocab_size
        }
        known = {
            token_id: to_bytes(token)
            for token, token_id in tokenizer.get_vocab(with_added_tokens=True).items()
            if token_id < vocab_size and token_id not in added
        }
        by_id = known | added
        tokens = tuple(by_id.get(token_id, b"") for token_id in range(1 + max(by_id, default=-1)))
        return cls(tokens, vocab_size, end_token_id, frozenset(added))

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of everything: compiled grammars may go from one vocabulary to another only if these are equal."""
        return hashlib.sha256(self.to_bytes()).hexdigest()

    def to_bytes(self) -> bytes:
        """Everything, for another process."""
        return pack(self.tokens, self.vocab_size, self.end_token_id, self.added_ids)

    @classmethod
    def from_bytes(cls, data: bytes) -> Vocabulary:
        """What `to_bytes` wrote. Raises ConfigError for anything else."""
        return cls(*unpack(data))

    @cached_property
    def added_texts(self) -> Mapping[str, int]:
        """Spelling of an added token -> its id."""
        return {self.tokens[token_id].decode(errors="replace"): token_id for token_id in sorted(self.added_ids)}

    @cached_property
    def ids(self) -> Mapping[bytes, int]:
        """Token -> its lowest id, of tokens that are text."""
        return {
            token: token_id
            for token_id, token in reversed([*enumerate(self.tokens)])
            if token and token_id not in self.added_ids
        }

    def tokenizer_info(self, *, spelled: Collection[int] = (), named: Collection[int] = ()) -> TokenizerInfo:
        """The vocabulary as the grammar library takes it; loads the library.

        spelled: added tokens that are text after all.
        named: added tokens that grammars may ask for by id, though they are no text.
        """
        from thalweg.structured.library import make_tokenizer_info

        tokens = list(self.tokens)
        for token_id in self.added_ids.difference(spelled):
            tokens[token_id] = _UNWRITABLE + token_id.to_bytes(4) if token_id in named else b""
        return make_tokenizer_info(tokens, self.vocab_size, self.end_token_id)


def _is_id(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _LARGEST
