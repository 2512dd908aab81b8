"""What checks of input need: comparing and showing values of any kind without raising themselves."""

from __future__ import annotations

from typing import Any

_LONGEST = 400


def is_same(value: object, other: object) -> bool:
    """Equality that is False where comparing gives no single answer, as with arrays."""
    try:
        result: object = value == other
        return getattr(result, "shape", ()) == () and bool(result)
    except Exception:
        return False


def shown(value: object) -> str:
    """The value as a message shows it: shortened, and also what Python refuses to print, such as huge integers."""
    try:
        text = repr(value)
    except Exception:
        if isinstance(value, int):
            return f"an integer of {value.bit_length()} bits"
        return f"a {type(value).__name__} that cannot be printed"
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 50]}...{text[-47:]}"


def plain(value: Any) -> Any:
    """Numbers of a subclass as plain ones: it may compare, compute and hash as it likes. All else as it is."""
    if isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int.__index__(value)
    return float.__float__(value) if isinstance(value, float) else value


def is_text(value: object) -> bool:
    """Whether this is a string, and one that can be encoded: a lone surrogate is in no output."""
    if not isinstance(value, str):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True
