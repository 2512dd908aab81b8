"""The `THALWEG_*` variables of the deployment options, and help with misspelled ones.

Every option of the table in `fields.py` has the variable `THALWEG_<NAME>`; a value fills the option's default and an
argument wins over it. Variables are read while an `EngineConfig` is built, never at import.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from typing import Any

from thalweg.engine.fields import FIELDS
from thalweg.interfaces import Variable
from thalweg.interfaces.environment import PREFIX


def variables() -> dict[str, Variable[Any]]:
    """Every variable that the engine reads, by full name, in the order of the option table."""
    return {option.variable.full_name: option.variable for option in FIELDS}


def unknown_variables(environ: Mapping[str, str] | None = None) -> dict[str, str | None]:
    """Variables that look like ours but that the engine does not read, each with the closest known name.

    They are not errors, because another package may read them; `thalweg config` points them out.
    """
    known = variables()
    unknown = sorted(
        name for name in (os.environ if environ is None else environ) if name.startswith(PREFIX) and name not in known
    )
    return {name: next(iter(difflib.get_close_matches(name, known, n=1, cutoff=0.8)), None) for name in unknown}
