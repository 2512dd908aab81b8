"""Small value rules for the keys of a checkpoint's config.json, each with the sentence its error message needs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, dataclass, field
from itertools import pairwise
from typing import Any, NoReturn

from thalweg.interfaces import ConfigError

_LARGEST = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Rule:
    """What a key accepts: a predicate and how to say it."""

    expectation: str
    accepts: Callable[[Any], bool]


def is_integer(value: object) -> bool:
    """Whether the value is an integer of JSON; true and false are not."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: object) -> bool:
    """Whether the value is a finite number of JSON."""
    return is_integer(value) or (isinstance(value, float) and value - value == 0.0)


def same(value: object, other: object) -> bool:
    """Equality that keeps booleans apart from 0 and 1, and treats lists as tuples."""
    if isinstance(value, list | tuple) and isinstance(other, list | tuple):
        return len(value) == len(other) and all(same(a, b) for a, b in zip(value, other, strict=True))
    return isinstance(value, bool) == isinstance(other, bool) and value == other


def equal(value: object) -> Rule:
    """Exactly one value."""
    shown = list(value) if isinstance(value, tuple) else value
    return Rule(f"only {shown!r} is supported", lambda found: same(found, value))


def one_of(*values: str) -> Rule:
    """One of several strings."""
    return Rule(f"it must be one of {', '.join(map(repr, values))}", lambda found: found in values)


def integer(minimum: int, multiple: int = 1, maximum: int = _LARGEST) -> Rule:
    """An integer with bounds, optionally a multiple. `maximum`: of counts that cost memory before a tensor is read."""
    kind = f"a multiple of {multiple}" if multiple > 1 else "an integer"
    return Rule(
        f"it must be {kind} from {minimum} to {maximum}",
        lambda found: is_integer(found) and minimum <= found <= maximum and found % multiple == 0,
    )


def optional_integer(minimum: int) -> Rule:
    """An integer with a lower bound, or null."""
    inner = integer(minimum)
    return Rule(f"{inner.expectation}, or null", lambda found: found is None or inner.accepts(found))


def integers(minimum: int) -> Rule:
    """A list of integers with a lower bound."""
    return Rule(
        f"it must be a list of integers from {minimum} to {_LARGEST}",
        lambda found: isinstance(found, tuple) and all(is_integer(v) and minimum <= v <= _LARGEST for v in found),
    )


def increasing(minimum: int) -> Rule:
    """A strictly increasing list of integers."""
    inner = integers(minimum)
    return Rule(
        f"it must be a strictly increasing list of integers from {minimum} to {_LARGEST}",
        lambda found: inner.accepts(found) and all(a < b for a, b in pairwise(found)),
    )


def positive() -> Rule:
    """A finite number above zero."""
    return Rule("it must be a number above 0", lambda found: is_number(found) and found > 0)


def ratio_or_null() -> Rule:
    """A number of at least one, or null."""
    return Rule(
        "it must be null or a number of at least 1", lambda found: found is None or (is_number(found) and found >= 1)
    )


def boolean() -> Rule:
    """True or false."""
    return Rule("it must be true or false", lambda found: isinstance(found, bool))


def text() -> Rule:
    """Any string."""
    return Rule("it must be a string", lambda found: isinstance(found, str))


def key(rule: Rule, *, section: str = "", group: str = "", default: Any = MISSING) -> Any:
    """Declare a dataclass field that mirrors a key of config.json.

    section: the nested object the key lives in. group: the key is only needed (and checked) while this feature is on.
    """
    return field(default=default, metadata={"rule": rule, "section": section, "group": group})


def reject(name: str, value: object, expectation: str) -> NoReturn:
    """Raise the ConfigError that names key, value and expectation."""
    shown = list(value) if isinstance(value, tuple) else value
    raise ConfigError(f"config.json: {name} is {shown!r}; {expectation}")


def frozen(value: Any) -> Any:
    """The value with lists turned into tuples, so that a frozen config is hashable."""
    return tuple(frozen(v) for v in value) if isinstance(value, list | tuple) else value
