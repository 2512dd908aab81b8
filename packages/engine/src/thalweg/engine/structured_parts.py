"""What serves grammars, made of the package thalweg-structured where that is installed, and only once it is needed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.util import find_spec
from typing import TYPE_CHECKING

from thalweg.engine.structured_config import StructuredConfig
from thalweg.engine.tokenizer import Tokenizer
from thalweg.interfaces import DraftWalk, FilledMasks, GrammarCompiler, MaskFiller

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from thalweg.structured import Vocabulary


class LateFiller:
    """Fills masks with what is made for the first of them: by then the grammar library has been loaded."""

    def __init__(self, make: Callable[[], MaskFiller]) -> None:
        self._make = make
        self._filler: MaskFiller | None = None

    def fill(self, walks: Sequence[DraftWalk], bitmask: NDArray[np.int32]) -> FilledMasks:
        """As `MaskFiller.fill`."""
        if self._filler is None:
            self._filler = self._make()
        return self._filler.fill(walks, bitmask)


def is_installed() -> bool:
    """Whether the package is there; it is not imported."""
    return find_spec("thalweg.structured") is not None


def compiler_maker(
    options: StructuredConfig, tokenizer: Tokenizer, *, draft_length: int
) -> Callable[[], GrammarCompiler] | None:
    """Makes the compiler of an engine; None without the package.

    The vocabulary of the tokenizer is read on a thread of the compiler. draft_length: tokens that a step may take back.
    """
    if not is_installed():
        return None

    def make() -> GrammarCompiler:
        from thalweg.structured import CompileService

        compiler: GrammarCompiler = CompileService(
            lambda: _vocabulary(tokenizer),
            num_workers=options.workers,
            timeout_s=options.timeout_s,
            cache_bytes=options.cache_bytes,
            max_pending_per_user=options.max_pending_per_user,
            max_rollback=draft_length + 2,
        )
        return compiler

    return make


def mask_filler(options: StructuredConfig) -> MaskFiller | None:
    """What fills the masks of an engine; None without the package."""
    if not is_installed():
        return None

    def make() -> MaskFiller:
        from thalweg.structured import BatchFiller

        filler: MaskFiller = BatchFiller(num_threads=options.mask_threads)
        return filler

    return LateFiller(make)


def _vocabulary(tokenizer: Tokenizer) -> Vocabulary:
    """What may be text; control tokens that the tokenizer does not mark as added ones are no text either."""
    from thalweg.structured import Vocabulary

    known = Vocabulary.from_tokenizer(
        tokenizer.library_tokenizer, vocab_size=tokenizer.vocab_size, end_token_id=tokenizer.eos_token_id
    )
    special = {token_id for token_id in tokenizer.special_ids if token_id < tokenizer.vocab_size}
    return replace(known, added_ids=known.added_ids | special)
