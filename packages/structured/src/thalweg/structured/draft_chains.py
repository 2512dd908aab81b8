"""Masks along drafts that a grammar judges from the first row on: one call of the library for each output."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from thalweg.interfaces import RequestError
from thalweg.structured.bitmask import allows_any
from thalweg.structured.matcher import GrammarMatcher
from thalweg.structured.pace import Pace

_PEEK = 16
"""Words that are looked at first. Tokens of one byte have low ids, so that few masks have no token there."""


class DraftChain(NamedTuple):
    """A matcher in its grammar, its drafts, and the first of the 1 + len(draft_ids) rows for its masks."""

    matcher: GrammarMatcher
    draft_ids: NDArray[np.int64]
    first_row: int


class ChainFiller:
    """Fills the rows of chains with a number of threads: the library works without the interpreter's lock.

    max_walk_s: seconds of the processor from which on a chain is slow.
    """

    def __init__(self, num_threads: int, max_walk_s: float) -> None:
        self._num_threads = num_threads
        self._max_walk_s = max_walk_s
        self._pool = ThreadPoolExecutor(num_threads - 1, "token masks") if num_threads > 1 else None

    def fill(
        self, chains: Sequence[DraftChain], bitmask: NDArray[np.int32]
    ) -> tuple[NDArray[np.int64], dict[int, Exception], dict[int, float]]:
        """How many rows of each chain hold a mask now, what went wrong, and seconds of the slow ones; by chain.

        The matchers stay as they are.

        bitmask: int32 [rows, words]. Behind a draft that is not allowed, or ends the output, no row has a mask.
        """
        nodes = _nodes([chain.draft_ids for chain in chains])
        drafts = nodes[:, 1:]
        vocab_sizes = np.array([chain.matcher.vocab_size for chain in chains], np.int64)
        end_ids = np.array([chain.matcher.end_token_id for chain in chains], np.int64)
        first_rows = np.array([chain.first_row for chain in chains], np.int64)
        is_token = (drafts >= 0) & (drafts < vocab_sizes[:, None])
        errors, slow = self._walk_all(chains, nodes, 1 + _num_leading(is_token), bitmask)
        rows = np.minimum(first_rows[:, None] + np.arange(drafts.shape[1]), len(bitmask) - 1)
        words = bitmask[rows, np.where(is_token, drafts, 0) // 32]
        is_allowed = is_token & (words >> drafts % 32 & 1 != 0)
        counts = 1 + _num_leading(is_allowed & (drafts != end_ids[:, None]))
        for number in _empty_masks(bitmask, first_rows, vocab_sizes):
            errors.setdefault(number, RequestError(chains[number].matcher.dead_end()))
        counts[list(errors)] = 0
        return counts, errors, slow

    def _walk_all(
        self,
        chains: Sequence[DraftChain],
        nodes: NDArray[np.int64],
        num_nodes: NDArray[np.int64],
        bitmask: NDArray[np.int32],
    ) -> tuple[dict[int, Exception], dict[int, float]]:
        """Let the library walk along the first nodes of every chain; errors, and seconds of the slow ones, by chain."""
        errors: dict[int, Exception] = {}
        slow: dict[int, float] = {}
        lengths = num_nodes.tolist()

        def share(start: int) -> None:
            pace = Pace(self._max_walk_s)
            for number in range(start, len(chains), self._num_threads):
                try:
                    _walk(chains[number], nodes[number, : lengths[number]], bitmask)
                except Exception as error:
                    errors[number] = error
                if taken_s := pace.lap():
                    slow[number] = taken_s

        others = [self._pool.submit(share, start) for start in range(1, self._num_threads)] if self._pool else []
        share(0)
        for other in others:
            other.result()
        return errors, slow


def _walk(chain: DraftChain, nodes: NDArray[np.int64], bitmask: NDArray[np.int32]) -> None:
    """Fill the row of the chain, and one after each of its drafts, nodes[1:], up to the first that is not allowed."""
    grammar, row = chain.matcher.grammar, chain.first_row
    if len(nodes) == 1:
        grammar.fill_next_token_bitmask(bitmask, row)
        return
    traverse: Callable[..., bool] = grammar.traverse_draft_tree  # declared for tensors, takes every array with DLPack
    traverse(*_links(len(nodes)), nodes, bitmask[row : row + len(nodes)])


@cache
def _links(num_nodes: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """First children and next siblings of a tree that is a chain; -1 means none."""
    children = np.arange(1, num_nodes + 1)
    children[-1] = -1
    return children, np.full(num_nodes, -1)


def _nodes(draft_ids: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    """[chains, 1 + longest] drafts from column 1 on, -1 behind the last of each; column 0 stands for what is known."""
    nodes = np.full((len(draft_ids), 1 + max(map(len, draft_ids), default=0)), -1, np.int64)
    for row, ids in zip(nodes, draft_ids, strict=True):
        row[1 : 1 + len(ids)] = ids
    return nodes


def _num_leading(is_true: NDArray[np.bool_]) -> NDArray[np.int64]:
    """[rows] how many of each row [rows, columns] are true before the first that is not."""
    return np.asarray(np.cumprod(is_true, axis=1, dtype=np.int64).sum(axis=1))


def _empty_masks(bitmask: NDArray[np.int32], rows: NDArray[np.int64], vocab_sizes: NDArray[np.int64]) -> list[int]:
    """Positions in `rows` of masks that allow no token."""
    looks_full = bitmask[rows, :_PEEK].any(axis=1) & (vocab_sizes >= 32 * _PEEK)
    suspects = np.flatnonzero(~looks_full).tolist()
    return [number for number in suspects if not allows_any(bitmask[rows[number]], int(vocab_sizes[number]))]
