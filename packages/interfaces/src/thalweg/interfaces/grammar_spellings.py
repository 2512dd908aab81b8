"""The spellings of a constraint that come from elsewhere, mapped to the fields of `GrammarSpec` once."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from thalweg.interfaces.checks import shown
from thalweg.interfaces.errors import ConfigError

_KIND_OF = {
    "json": "json",
    "regex": "regex",
    "ebnf": "ebnf",
    "grammar": "ebnf",
    "choice": "choice",
    "structural_tag": "structural_tag",
}
"""Key -> the kind whose source its value is."""

_ALIASES = {"schema_type": "kind", "schema": "source"}

_REFUSED = {
    "serialized": "compiled grammars are not taken from outside; give schema_type and schema",
    "bound_token_ids": "there is one bound; give bound_token_id",
    "whitespace_pattern": "any_whitespace and max_whitespace say how much white space there may be",
}
"""Key of another system -> what to do instead."""

_SWITCHED: dict[str, dict[str, Any]] = {
    "json_object": {"kind": "json", "source": '{"type": "object"}'},
    "disable_any_whitespace": {"any_whitespace": False},
    "disable_additional_properties": {"strict": True},
}
"""Switch -> what it means when it is on; off it means nothing."""


def to_spec_fields(values: Mapping[str, Any], known: Collection[str]) -> dict[str, Any]:
    """Field -> value of what a mapping gives, `kind` and `source` among them; None leaves a key out.

    known: the names of the fields. DeepInfer says `schema_type` and `schema`. vLLM has a key for each kind; its
    `json_object` True means any object, and its `disable_` switches are ours the other way round.
    Raises ConfigError for what is no mapping, an unknown or refused key, none or several kinds, and one field given
    twice.
    """
    if not isinstance(values, Mapping):
        raise ConfigError(f"a constraint is {shown(values)}; it must be a mapping")
    result: dict[str, Any] = {}
    for key, value in values.items():
        if value is None:
            continue
        if key in _REFUSED:
            raise ConfigError(f"{key} is {shown(value)}; {_REFUSED[key]}")
        for name, meaning in _meaning(key, value, known).items():
            if name in result:
                raise ConfigError(f"{name} is given twice, once by {shown(key)}; a constraint has exactly one")
            result[name] = meaning
    for name in ("kind", "source"):
        if name not in result:
            raise ConfigError(f"{name} is not given; give kind and source, or one of {', '.join(_KIND_OF)}")
    return result


def _meaning(key: Any, value: Any, known: Collection[str]) -> dict[str, Any]:
    if key in _SWITCHED:
        return _switched(key, value)
    if key in _KIND_OF:
        return {"kind": _KIND_OF[key], "source": value}
    name = _ALIASES.get(key, key)
    if name not in known:
        names = sorted({*known, *_ALIASES, *_KIND_OF, *_SWITCHED})
        raise ConfigError(f"unknown option {shown(key)} of a constraint; known are {', '.join(names)}")
    return {name: value}


def _switched(key: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, bool):
        raise ConfigError(f"{key} is {shown(value)}; it must be True or False")
    if not value:
        return {}
    return dict(_SWITCHED[key])
