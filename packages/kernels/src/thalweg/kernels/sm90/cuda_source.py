"""Device functions in CUDA C++ that TileLang kernels call: read from files beside this one."""

from __future__ import annotations

import functools
import re
from pathlib import Path

FOLDER = Path(__file__).with_name("cuda")
_OWN_INCLUDE = re.compile(r'^#include "(\w+\.cuh)"\n', re.MULTILINE)


@functools.cache
def cuda_source(name: str) -> str:
    """The text of cuda/<name>, files that it includes from there in place of the first include of each.

    TileLang has no path for includes, and its cache knows a kernel by its text, so that every line must be in it.
    """
    return _text_of(name, set())


def _text_of(name: str, included: set[str]) -> str:
    if name in included:
        return ""
    included.add(name)
    text = (FOLDER / name).read_text(encoding="utf-8")
    return _OWN_INCLUDE.sub(lambda match: _text_of(match[1], included), text)
