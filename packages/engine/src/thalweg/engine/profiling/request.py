"""What a client may ask of the profile server, checked strictly: a typo must not start a profile of something else."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl

from thalweg.interfaces import shown

MAX_STEPS = 50
_FIELDS = ("output_dir", "num_steps")


@dataclass(frozen=True, slots=True)
class ProfileRequest:
    """One profile: where the trace goes, and how many steps it covers."""

    output_dir: str
    num_steps: int = 20

    @classmethod
    def parse(cls, query: str, body: bytes, default_dir: str) -> ProfileRequest:
        """Merge query and JSON body, of which the body wins. Raises ValueError naming the field."""
        in_query, in_body = _parse_query(query), _parse_body(body)
        for name in (*in_query, *in_body):
            if name not in _FIELDS:
                raise ValueError(f"unknown field {name!r}; known are {' and '.join(_FIELDS)}")
        if "num_steps" in in_query and "num_steps" not in in_body:
            in_query["num_steps"] = _parse_number(in_query["num_steps"])
        fields = {"output_dir": default_dir} | in_query | in_body
        request = cls(**fields)
        request.check()
        return request

    def check(self) -> None:
        """Raise ValueError unless both fields are good."""
        if not isinstance(self.output_dir, str) or not self.output_dir or "\0" in self.output_dir:
            raise ValueError(f"output_dir is {shown(self.output_dir)}; it must be a path")
        steps = self.num_steps
        if not isinstance(steps, int) or isinstance(steps, bool) or not 1 <= steps <= MAX_STEPS:
            raise ValueError(f"num_steps is {shown(steps)}; it must be an integer from 1 to {MAX_STEPS}")


def _parse_query(query: str) -> dict[str, Any]:
    pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query), max_num_fields=16)
    return _without_repeats(pairs)


def _parse_body(body: bytes) -> dict[str, Any]:
    if not body.strip():
        return {}
    try:
        document = json.loads(body, object_pairs_hook=_without_repeats)
    except (RecursionError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ValueError(f"the body is not valid JSON ({error})") from None
    if not isinstance(document, Mapping):
        raise ValueError(f"the body is {shown(document)}; it must be a JSON object")
    return dict(document)


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise ValueError(f"a field is given twice: {', '.join(name for name, _ in pairs)}")
    return fields


def _parse_number(text: str) -> int | str:
    """The number, or the text for the check to refuse."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else text
