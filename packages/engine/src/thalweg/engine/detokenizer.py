"""Text of a growing token list, piece by piece, without ever showing half a character."""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from thalweg.engine.tokenizer import Tokenizer

_MAX_PENDING_BYTES = 3  # an unfinished UTF-8 character is at most this long
_MAX_CONTEXT_TOKENS = 16


class Detokenizer:
    """Turns tokens into text as they come.

    The pieces of `push` and the rest of `finish` concatenate to `tokenizer.decode(all tokens)`, however the tokens
    were grouped into calls. Bytes of an unfinished character are held back until they are complete or known to be
    broken. Every token costs its own bytes only. Special tokens add nothing, and do not separate the bytes around
    them, as in a whole decode.

    prompt_token_ids: what precedes the output. When it ends inside a character, the output completes that character.
    """

    def __init__(self, tokenizer: Tokenizer, prompt_token_ids: Sequence[int] = ()) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._pieces: list[str] = []
        self._is_finished = False
        self._decoder.decode(self._tail_bytes(prompt_token_ids))

    @property
    def text(self) -> str:
        """Everything returned so far."""
        self._pieces = ["".join(self._pieces)]
        return self._pieces[0]

    def push(self, token_ids: Sequence[int]) -> str:
        """Take more tokens; the new text that no later token can change, possibly empty."""
        if self._is_finished:
            raise ValueError("this detokenizer is finished; it takes no more tokens")
        return self._emit(b"".join(map(self._tokenizer.token_bytes, token_ids)), final=False)

    def finish(self) -> str:
        """The text of what was held back: U+FFFD for an unfinished character, else nothing. Ends the stream."""
        if self._is_finished:
            return ""
        self._is_finished = True
        return self._emit(b"", final=True)

    def _emit(self, data: bytes, *, final: bool) -> str:
        piece = self._decoder.decode(data, final)
        self._pieces.append(piece)
        return piece

    def _tail_bytes(self, prompt_token_ids: Sequence[int]) -> bytes:
        """The end of the prompt, long enough to hold any unfinished character and what it starts with."""
        tail = b""
        for token_id in reversed(prompt_token_ids[-_MAX_CONTEXT_TOKENS:]):
            tail = self._tokenizer.token_bytes(int(token_id)) + tail
            if len(tail) > _MAX_PENDING_BYTES:
                break
        return tail
