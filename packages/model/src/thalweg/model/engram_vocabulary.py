"""The compressed ids that Engram hashes: tokens whose text differs only in case, accents or spacing share one id."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray
from tokenizers import Tokenizer, normalizers

from thalweg.interfaces import CheckpointError, ConfigError
from thalweg.model.config import ModelConfig

TOKENIZER_NAME = "tokenizer.json"
PAD_TOKEN = "<\uff5c\u2581pad\u2581\uff5c>"
"""Written with a full-width bar and U+2581; its id must be engram_pad_token_id."""
IMAGE_MARK = -1
"""What stands for a position of an image span where token ids are expected."""
_REPLACEMENT = "\ufffd"
_SPACES = re.compile(r"[ \t\r\n]+")
_WHITE_SPACE = "".join(
    map(chr, [*range(9, 14), 0x20, 0x85, 0xA0, 0x1680, *range(0x2000, 0x200B), 0x2028, 0x2029, 0x202F, 0x205F, 0x3000])
)
"""The characters of Unicode's White_Space property; Python's own strip takes four control characters more."""


@dataclass(frozen=True, slots=True, eq=False)
class EngramVocabulary:
    """The map from token ids to compressed ids."""

    compressed_ids: NDArray[np.int64]
    """int64 [V] by token id; V is the tokenizer's size."""
    size: int
    """Number of different compressed ids."""
    pad_id: int
    """Compressed id that stands for positions before the sequence or beyond an image."""

    @classmethod
    def from_tokenizer_file(cls, path: str | Path, pad_token_id: int = 2) -> EngramVocabulary:
        """Build the map from a tokenizer.json.

        Raises CheckpointError when the file is missing or unreadable, ConfigError when the pad token has another id.
        """
        if not Path(path).is_file():
            raise CheckpointError(f"{path}: does not exist; a checkpoint with Engram layers needs its {TOKENIZER_NAME}")
        try:
            tokenizer = Tokenizer.from_buffer(Path(path).read_bytes())
        except Exception as error:  # the library raises a bare Exception for any defect
            raise CheckpointError(f"{path}: is not a tokenizer ({error})") from error
        found = tokenizer.token_to_id(PAD_TOKEN)
        if found != pad_token_id:
            raise ConfigError(
                f"{path}: {PAD_TOKEN} has id {found}; it must be {pad_token_id}, text_config.engram_pad_token_id"
            )
        size = 1 + max(tokenizer.get_vocab(with_added_tokens=True).values())
        texts = tokenizer.decode_batch([[token] for token in range(size)], skip_special_tokens=False)
        ids = compress(texts, lambda token: tokenizer.id_to_token(token) or "")
        return cls(ids, int(ids.max()) + 1, int(ids[pad_token_id]))

    @classmethod
    def from_checkpoint(cls, directory: str | Path, config: ModelConfig) -> EngramVocabulary:
        """Build the map of a checkpoint and compare its size with the config. Raises ConfigError on a mismatch."""
        vocabulary = cls.from_tokenizer_file(Path(directory) / TOKENIZER_NAME, config.engram_pad_token_id)
        declared = config.engram_compressed_vocab_size
        if declared is not None and declared != vocabulary.size:
            raise ConfigError(
                f"config.json: text_config.engram_compressed_vocab_size is {declared}; "
                f"{TOKENIZER_NAME} compresses to {vocabulary.size}"
            )
        return vocabulary

    def ngram_ids(
        self,
        token_ids: ArrayLike,
        max_ngram_size: int,
        *,
        previous: ArrayLike = (),
        image_mask: ArrayLike | None = None,
    ) -> NDArray[np.int64]:
        """The window of each token: int64 [n, N], column g is position p - g, the pad from the first blocked one on.

        token_ids: [n] consecutive tokens of one sequence. previous: the tokens before them (the last N - 1 matter;
        fewer only at the start of the sequence). image_mask: bool [n]. Ids outside the map count as image marks too.
        """
        current = np.asarray(token_ids, dtype=np.int64).copy()
        if image_mask is not None:
            current[np.asarray(image_mask, dtype=bool)] = IMAGE_MARK
        reach = max_ngram_size - 1
        before = np.asarray(previous, dtype=np.int64)[-reach:] if reach else np.empty(0, dtype=np.int64)
        marks = np.full(reach - len(before), IMAGE_MARK, dtype=np.int64)
        line = np.concatenate([marks, before, current])
        known = (line >= 0) & (line < len(self.compressed_ids))
        ids = np.where(known, self.compressed_ids[np.where(known, line, 0)], IMAGE_MARK)
        columns = [ids[reach - g : len(ids) - g] for g in range(max_ngram_size)]
        windows = np.stack(columns, axis=1)
        blocked = np.logical_or.accumulate(windows == IMAGE_MARK, axis=1)
        return np.where(blocked, self.pad_id, windows)


def compress(texts: Iterable[str], raw: Callable[[int], str]) -> NDArray[np.int64]:
    """Number the keys of the decoded tokens in order of first appearance: int64 [V].

    raw: gives a token's vocabulary string, the key of tokens that are no complete text by themselves.
    """
    normaliser = normalizers.Sequence(
        [normalizers.NFKC(), normalizers.NFD(), normalizers.StripAccents(), normalizers.Lowercase()]
    )
    numbers: dict[str, int] = {}
    ids = []
    for token, text in enumerate(texts):
        key = raw(token) if _REPLACEMENT in text else _trim(normaliser.normalize_str(text)) or text
        ids.append(numbers.setdefault(key, len(numbers)))
    return np.array(ids, dtype=np.int64)


def _trim(text: str) -> str:
    """Collapse ASCII white space and strip; a text that is one space stays one."""
    collapsed = _SPACES.sub(" ", text)
    return " " if collapsed == " " else collapsed.strip(_WHITE_SPACE)
