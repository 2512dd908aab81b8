"""Text that the command line is pointed at."""

from __future__ import annotations

import sys
from pathlib import Path

from thalweg.interfaces import ConfigError


def read_text(source: str) -> str:
    """The text of a UTF-8 file, or of standard input for "-". Raises ConfigError naming the source."""
    try:
        data = sys.stdin.buffer.read() if source == "-" else Path(source).read_bytes()
        return data.decode("utf-8-sig")
    except OSError as error:
        raise ConfigError(f"{source} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{source} is not UTF-8: {error.reason} at byte {error.start}") from None
