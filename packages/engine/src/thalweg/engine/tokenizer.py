"""Text to token ids and back, under the checkpoint's policy for begin, end and padding tokens.

Checkpoints of this family use byte-level BPE: every token is a byte string, and text is the UTF-8 reading of the
bytes of all tokens. That is what makes exact incremental detokenisation possible, so only decoders with this
property are accepted: ByteLevel, and Fuse (tokens are plain text).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import tokenizers
from tokenizers.decoders import ByteLevel, Fuse

from thalweg.interfaces import ConfigError, RequestError

_IMAGE_PLACEHOLDERS = 21  # ids right above the embedding that a tokenizer may name; see image spans of the checkpoint
_SPELLINGS = {"bos": "<｜begin▁of▁sentence｜>", "eos": "<｜end▁of▁sentence｜>", "pad": "<｜▁pad▁｜>"}  # noqa: RUF001


class Tokenizer:
    """The tokenizer of one checkpoint.

    bos_token_id, eos_token_id, pad_token_id: as in config.json; each must exist in the tokenizer and agree with its
    usual spelling where the vocabulary has that. They never show in text, marked special or not.
    vocab_size: rows of the model's embedding.
    Raises ConfigError when tokenizer and config contradict each other, or for a decoder that is not supported.
    """

    def __init__(
        self,
        tokenizer: tokenizers.Tokenizer,
        *,
        bos_token_id: int,
        eos_token_id: int,
        pad_token_id: int,
        vocab_size: int,
    ) -> None:
        if not isinstance(tokenizer.decoder, ByteLevel | Fuse):
            found = "none" if tokenizer.decoder is None else type(tokenizer.decoder).__name__
            raise ConfigError(f"the decoder of the tokenizer is {found}; ByteLevel and Fuse are supported")
        self._tokenizer = tokenizer
        self._is_byte_level = isinstance(tokenizer.decoder, ByteLevel)
        added = tokenizer.get_added_tokens_decoder()
        self._special = {token_id for token_id, token in added.items() if token.special}
        self._special |= {bos_token_id, eos_token_id, pad_token_id}
        self._bytes: dict[int, bytes] = {}
        self.bos_token_id = bos_token_id
        self.eos_token_id = eos_token_id
        self.pad_token_id = pad_token_id
        self.vocab_size = vocab_size
        for name, token_id in (("bos", bos_token_id), ("eos", eos_token_id), ("pad", pad_token_id)):
            self._check_special(name, token_id)
        highest = max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1)
        if highest >= vocab_size + _IMAGE_PLACEHOLDERS:
            raise ConfigError(
                f"the tokenizer has token id {highest}; with vocab_size {vocab_size} and {_IMAGE_PLACEHOLDERS} image "
                f"placeholders it must be below {vocab_size + _IMAGE_PLACEHOLDERS}"
            )

    @staticmethod
    def from_file(
        path: Path | str, *, bos_token_id: int, eos_token_id: int, pad_token_id: int, vocab_size: int
    ) -> Tokenizer:
        """Read tokenizer.json; `path` is the file or the checkpoint folder that holds it.

        Raises ConfigError naming the path when it is missing or unreadable.
        """
        path = Path(path)
        if path.is_dir():
            path = path / "tokenizer.json"
        if not path.is_file():
            raise ConfigError(f"tokenizer file {path} does not exist; a checkpoint needs its tokenizer.json")
        try:
            tokenizer = tokenizers.Tokenizer.from_buffer(path.read_bytes())  # its own reader takes only UTF-8 paths
        except Exception as error:  # the library raises bare Exception
            raise ConfigError(f"tokenizer file {path} cannot be read: {error}") from error
        tokenizer.no_padding()
        tokenizer.no_truncation()
        try:
            return Tokenizer(
                tokenizer,
                bos_token_id=bos_token_id,
                eos_token_id=eos_token_id,
                pad_token_id=pad_token_id,
                vocab_size=vocab_size,
            )
        except ConfigError as error:
            raise ConfigError(f"{path}: {error}") from None

    @property
    def library_tokenizer(self) -> tokenizers.Tokenizer:
        """The one below, of the library `tokenizers`; to be read only."""
        return self._tokenizer

    @property
    def special_ids(self) -> frozenset[int]:
        """Control tokens, which never show in text."""
        return frozenset(self._special)

    def encode(self, text: str, *, add_bos: bool = True) -> list[int]:
        """The token ids of a text prompt, begin token first unless the text already spells it.

        Raises RequestError for text that is not valid Unicode (a lone surrogate).
        """
        if not isinstance(text, str):
            raise RequestError(f"prompt is {type(text).__name__}; it must be a string")
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise RequestError(
                f"prompt has a lone surrogate at character {error.start}; it must be valid Unicode"
            ) from None
        token_ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        if add_bos and token_ids[:1] != [self.bos_token_id]:
            token_ids.insert(0, self.bos_token_id)
        return token_ids

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of a whole token list, special tokens left out; bytes that are no UTF-8 read as U+FFFD."""
        shown = [token_id for token_id in token_ids if token_id >= 0 and token_id not in self._special]
        text: str = self._tokenizer.decode(shown, skip_special_tokens=False)
        return text

    def token_bytes(self, token_id: int) -> bytes:
        """What a token contributes to the text; empty for special tokens and for ids the tokenizer does not know."""
        known = self._bytes.get(token_id)
        if known is None:
            known = self._bytes[token_id] = self._find_bytes(token_id)
        return known

    def is_special(self, token_id: int) -> bool:
        """Whether the token is a control token, which never shows in text."""
        return token_id in self._special

    def _find_bytes(self, token_id: int) -> bytes:
        token = self._token(token_id)
        if token is None or self.is_special(token_id):
            return b""
        if not self._is_byte_level:
            return token.encode("utf-8")
        try:
            return bytes(_BYTE_OF_CHARACTER[character] for character in token)
        except KeyError:  # an added token spelled in plain text
            return token.encode("utf-8")

    def _token(self, token_id: int) -> str | None:
        return self._tokenizer.id_to_token(token_id) if token_id >= 0 else None

    def _check_special(self, name: str, token_id: int) -> None:
        token = self._token(token_id)
        if token is None or token_id >= self.vocab_size:
            raise ConfigError(
                f"{name}_token_id is {token_id}; it must be a token of the tokenizer below vocab_size {self.vocab_size}"
            )
        expected = self._tokenizer.token_to_id(_SPELLINGS[name])
        if expected is not None and expected != token_id:
            raise ConfigError(
                f"{name}_token_id is {token_id} ({token!r}); in the tokenizer {_SPELLINGS[name]!r} is {expected}"
            )


def _byte_level_alphabet() -> dict[str, int]:
    """Printable Latin-1 characters stand for themselves, the other bytes for U+0100 and up in order."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    alphabet = {chr(byte): byte for byte in printable}
    alphabet.update({chr(0x100 + index): byte for index, byte in enumerate(others)})
    return alphabet


_BYTE_OF_CHARACTER = _byte_level_alphabet()
