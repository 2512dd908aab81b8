"""Token sequences that an output must not contain: which tokens would complete one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class _SameLength:
    """Words of p + 1 tokens, sorted into what comes first and what must not follow it."""

    beginnings: NDArray[np.int64]
    """[w, p]"""
    last_ids: NDArray[np.int64]
    """[w]"""


class BadWords:
    """The words of one request, prepared for many steps. words: non-empty sequences of token ids."""

    def __init__(self, words: Sequence[Sequence[int]]) -> None:
        by_length: dict[int, list[Sequence[int]]] = defaultdict(list)
        for word in words:
            by_length[len(word)].append(word)
        tables = [np.array(same, np.int64) for _, same in sorted(by_length.items())]
        self._groups = [_SameLength(table[:, :-1], table[:, -1]) for table in tables]
        self.look_back: int = max(by_length, default=1) - 1
        """So many tokens of the past decide what is forbidden."""

    def pairs(
        self, past: NDArray[np.int64], drafts: NDArray[np.int64], num_rows: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(row, token id) [f] each: token ids that would end a word in rows 0..num_rows-1 of one sequence.

        past: [h] the output before row 0; its last `look_back` tokens are enough. drafts: at least num_rows - 1 of
        them; row j follows the first j.
        """
        text = np.concatenate((past[max(0, past.size - self.look_back) :], drafts[: num_rows - 1]))
        start = text.size - (num_rows - 1)  # where the tokens that row 0 follows end
        rows: list[NDArray[np.int64]] = []
        ids: list[NDArray[np.int64]] = []
        for group in self._groups:
            length = group.beginnings.shape[1]
            first = max(0, length - start)  # earlier rows follow fewer tokens than the words need
            if first >= num_rows:
                continue
            windows = _windows(text, length)[start + first - length :]
            matches = (windows[:, None, :] == group.beginnings).all(-1)
            found_rows, found_words = np.nonzero(matches)
            rows.append(found_rows + first)
            ids.append(group.last_ids[found_words])
        if not rows:
            return np.zeros(0, np.int64), np.zeros(0, np.int64)
        return np.concatenate(rows), np.concatenate(ids)


def _windows(text: NDArray[np.int64], length: int) -> NDArray[np.int64]:
    """[h - length + 1, length] of [h], length <= h; for length 0 there is one more than there are tokens, too."""
    if length == 0:
        return np.zeros((text.size + 1, 0), np.int64)
    return np.lib.stride_tricks.sliding_window_view(text, length)
