"""The first line of a file of confidence records; the lines behind it are [[confidence, ...], accepted drafts]."""

from __future__ import annotations

from typing import Any

from thalweg.dspark._checks import require_draft_length
from thalweg.dspark._json import is_integer
from thalweg.interfaces import ConfigError, shown

FORMAT = "thalweg-confidence-records"
VERSION = 1
MAX_HEADER_BYTES = 4096
MAX_LINE_BYTES = 1 << 20
"""No row of up to 1,024 drafts is as long as this."""


def header(draft_length: int) -> dict[str, Any]:
    """The value of the first line. Raises ConfigError for a bad draft length."""
    require_draft_length(draft_length)
    return {"format": FORMAT, "version": VERSION, "draft_length": draft_length}


def parse_header(value: Any) -> int:
    """The draft length of a file from the value of its first line. Raises ConfigError for another format or version."""
    if not isinstance(value, dict) or value.get("format") != FORMAT:
        raise ConfigError(f"its first line is {shown(value)}; an object with format {FORMAT!r} is needed")
    if not is_integer(value.get("version")) or value["version"] != VERSION:
        raise ConfigError(f"its version is {shown(value.get('version'))}; version {VERSION} is understood")
    draft_length: Any = value.get("draft_length")
    require_draft_length(draft_length)
    return int(draft_length)
