"""What checks of input need: comparing and showing values of any kind without raising themselves."""

from __future__ import annotations

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
