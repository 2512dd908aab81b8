"""What checks of input need: comparing and showing values of any kind without raising themselves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from thalweg.interfaces.errors import ConfigError

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


def as_tuple(name: str, value: object, items: str) -> tuple[Any, ...]:
    """What a field got for a sequence, its numbers plain; a text is no sequence. items: what it must hold.

    Raises ConfigError naming the field.
    """
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        raise ConfigError(f"{name} is {shown(value)}; it must be a sequence of {items}")
    try:
        return tuple(map(plain, value))
    except TypeError as error:  # only looked like one, as an array without dimensions does
        raise ConfigError(f"{name} is {shown(value)}; it must be a sequence of {items}: {error}") from None
