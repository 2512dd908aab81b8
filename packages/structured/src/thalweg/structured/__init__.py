"""Constrained decoding with xgrammar, for any sampler.

Names are loaded on first use: importing the package loads neither xgrammar nor torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from thalweg.structured.__about__ import __version__

if TYPE_CHECKING:
    from thalweg.structured.compile import compile_grammar
    from thalweg.structured.drafts import BatchFiller
    from thalweg.structured.matcher import GrammarMatcher
    from thalweg.structured.service import CompileService
    from thalweg.structured.vocabulary import Vocabulary

_MODULE_OF = {
    "BatchFiller": "drafts",
    "CompileService": "service",
    "GrammarMatcher": "matcher",
    "Vocabulary": "vocabulary",
    "compile_grammar": "compile",
}

__all__ = [
    "BatchFiller",
    "CompileService",
    "GrammarMatcher",
    "Vocabulary",
    "__version__",
    "compile_grammar",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
