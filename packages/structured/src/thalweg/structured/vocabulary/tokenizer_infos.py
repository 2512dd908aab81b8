"""The library's forms of one vocabulary: text alone, and with the added tokens that structural tags ask for."""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import replace

from thalweg.interfaces import GrammarSpec
from thalweg.structured.library import TokenizerInfo
from thalweg.structured.vocabulary import Vocabulary
from thalweg.structured.vocabulary.framing import Framing, framing_of

_MAX_KEPT = 4
"""Each takes a tenth of a second to make and ten megabytes at a vocabulary of 129,280."""


class TokenizerInfos:
    """Makes and keeps them; for several threads at a time."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._plain = vocabulary.tokenizer_info()
        self._framed: OrderedDict[tuple[frozenset[int], frozenset[int]], TokenizerInfo] = OrderedDict()
        self._lock = threading.Lock()

    def prepare(self, spec: GrammarSpec) -> tuple[GrammarSpec, TokenizerInfo]:
        """What to give to `compile_grammar` for this specification.

        Raises RequestError for a structural tag that asks for a token the vocabulary lacks.
        """
        if spec.kind != "structural_tag":
            return spec, self._plain
        framing = framing_of(spec.source, self._vocabulary)
        return replace(spec, source=framing.source), self._info_of(framing)

    def _info_of(self, framing: Framing) -> TokenizerInfo:
        if not framing.spelled and not framing.named:
            return self._plain
        key = (framing.spelled, framing.named)
        with self._lock:
            info = self._framed.pop(key, None)
            if info is None:
                info = self._vocabulary.tokenizer_info(spelled=framing.spelled, named=framing.named)
            self._framed[key] = info
            if len(self._framed) > _MAX_KEPT:
                self._framed.popitem(last=False)
        return info
