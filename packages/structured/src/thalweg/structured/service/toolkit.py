"""A vocabulary and what the grammar library makes of it; loads the library."""

from __future__ import annotations

from functools import cached_property

from thalweg.interfaces import GrammarSpec
from thalweg.structured.compile import compile_grammar
from thalweg.structured.library import CompiledGrammar
from thalweg.structured.service import shipping
from thalweg.structured.vocabulary import Vocabulary
from thalweg.structured.vocabulary.tokenizer_infos import TokenizerInfos


class Toolkit:
    """Compiles for one vocabulary, in whichever process; for several threads at a time."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._infos = TokenizerInfos(vocabulary)

    @cached_property
    def origin(self) -> dict[str, str]:
        """What must be equal where a grammar of this toolkit is used."""
        return shipping.origin(self._vocabulary)

    def compile(self, spec: GrammarSpec) -> CompiledGrammar:
        """Compile in this thread. Raises RequestError for a grammar that cannot be served."""
        return compile_grammar(*self._infos.prepare(spec))

    def pack(self, compiled: CompiledGrammar, spec: GrammarSpec) -> bytes:
        """What `compile` made of this specification, for another process."""
        return shipping.pack(compiled, spec, self._vocabulary)

    def unpack(self, data: bytes, spec: GrammarSpec) -> CompiledGrammar:
        """What `pack` wrote for this specification. Raises ConfigError if it does not fit."""
        _, info = self._infos.prepare(spec)
        return shipping.unpack(data, spec, self._vocabulary, info)
