"""What an output must look like."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from thalweg.interfaces.checks import as_tuple, is_text, plain, shown
from thalweg.interfaces.errors import ConfigError
from thalweg.interfaces.grammar_spellings import to_spec_fields

GRAMMAR_KINDS = ("json", "regex", "ebnf", "choice", "structural_tag")
_OPTIONS_OF_JSON = ("strict", "any_whitespace", "max_whitespace")


@dataclass(frozen=True, slots=True)
class GrammarSpec:
    """A constraint on the output text: exactly one kind and its source.

    Raises ConfigError naming field, value and what is accepted. Whether the source can be served is known only after it
    was compiled.
    """

    kind: str
    """One of `GRAMMAR_KINDS`."""
    source: str
    """The text of a JSON schema, a regular expression, an EBNF grammar with the rule `root`, a JSON list of the
    choices, or the JSON of a structural tag."""
    strict: bool = True
    """Kind json: objects and arrays that declare some of their members have no others."""
    any_whitespace: bool = True
    """Kind json: white space between tokens is the model's choice; else there is one space after ',' and ':'."""
    max_whitespace: int | None = None
    """Kind json with any_whitespace: at most so many characters of it in one place; None = any number."""
    trigger_token_ids: tuple[int, ...] = ()
    """The grammar starts after this token sequence has appeared, such as the end of thinking. Empty: at once."""
    bound_token_id: int | None = None
    """From this token on, while the trigger has not appeared, the trigger is forced and the grammar follows."""

    def __post_init__(self) -> None:
        put = object.__setattr__
        put(self, "trigger_token_ids", _as_ids(self.trigger_token_ids))
        put(self, "bound_token_id", plain(self.bound_token_id))
        put(self, "max_whitespace", plain(self.max_whitespace))
        self._check_text()
        self._check_options()
        self._check_trigger()
        put(self, "kind", str.__str__(self.kind))
        put(self, "source", str.__str__(self.source))

    @staticmethod
    def json(
        schema: str | bool | Mapping[str, Any],
        *,
        strict: bool = True,
        any_whitespace: bool = True,
        max_whitespace: int | None = None,
        trigger_token_ids: Sequence[int] = (),
        bound_token_id: int | None = None,
    ) -> GrammarSpec:
        """JSON that a schema allows; the schema is its text, or what `json.loads` makes of it. True allows any JSON."""
        if not isinstance(schema, str | bool | Mapping):
            raise ConfigError(f"schema is {shown(schema)}; it must be a mapping, a bool, or the text of one")
        source = schema if isinstance(schema, str) else _to_json("schema", schema)
        ids = _as_ids(trigger_token_ids)
        return GrammarSpec("json", source, strict, any_whitespace, max_whitespace, ids, bound_token_id)

    @staticmethod
    def regex(pattern: str, *, trigger_token_ids: Sequence[int] = (), bound_token_id: int | None = None) -> GrammarSpec:
        """Text that a regular expression matches from its beginning to its end."""
        return _without_options("regex", pattern, trigger_token_ids, bound_token_id)

    @staticmethod
    def ebnf(grammar: str, *, trigger_token_ids: Sequence[int] = (), bound_token_id: int | None = None) -> GrammarSpec:
        """Text that the rule `root` of a grammar derives."""
        return _without_options("ebnf", grammar, trigger_token_ids, bound_token_id)

    @staticmethod
    def choice(
        choices: Sequence[str], *, trigger_token_ids: Sequence[int] = (), bound_token_id: int | None = None
    ) -> GrammarSpec:
        """One of several texts."""
        is_sequence = isinstance(choices, Sequence) and not isinstance(choices, str | bytes)
        if not is_sequence or not choices or not all(map(is_text, choices)):
            raise ConfigError(f"choice is {shown(choices)}; it must be a list of at least one string of Unicode text")
        return _without_options("choice", _to_json("choice", list(choices)), trigger_token_ids, bound_token_id)

    @staticmethod
    def structural_tag(
        tag: str | Mapping[str, Any], *, trigger_token_ids: Sequence[int] = (), bound_token_id: int | None = None
    ) -> GrammarSpec:
        """Text with parts between begin and end marks that follow grammars of their own: xgrammar's structural tags."""
        if not isinstance(tag, str | Mapping):
            raise ConfigError(f"structural_tag is {shown(tag)}; it must be a mapping or the text of one")
        source = tag if isinstance(tag, str) else _to_json("structural_tag", tag)
        return _without_options("structural_tag", source, trigger_token_ids, bound_token_id)

    @staticmethod
    def from_dict(values: Mapping[str, Any]) -> GrammarSpec:
        """Build from a mapping with the names of the fields, or in the spelling of DeepInfer or vLLM.

        {"kind": .., "source": ..}, {"schema_type": .., "schema": ..} or one kind as a key, such as {"json": schema};
        options stand beside it. None leaves a key out. Raises ConfigError for an unknown key, none or several kinds,
        and two spellings of one option.
        """
        given = to_spec_fields(values, {field.name for field in fields(GrammarSpec)})
        kind, source = given.pop("kind"), given.pop("source")
        if not isinstance(source, str):
            source = _to_source(kind, source)
        return GrammarSpec(kind, source, **given)

    def _check_text(self) -> None:
        if not isinstance(self.kind, str) or self.kind not in GRAMMAR_KINDS:
            raise ConfigError(f"kind is {shown(self.kind)}; it must be one of {', '.join(GRAMMAR_KINDS)}")
        if not is_text(self.source) or not self.source:
            raise ConfigError(f"source is {shown(self.source)}; it must be a non-empty string of Unicode text")

    def _check_options(self) -> None:
        for name in ("strict", "any_whitespace"):
            if not isinstance(getattr(self, name), bool):
                raise ConfigError(f"{name} is {shown(getattr(self, name))}; it must be True or False")
        if self.max_whitespace is not None and not _is_count(self.max_whitespace):
            raise ConfigError(f"max_whitespace is {shown(self.max_whitespace)}; it must be None or an int >= 0")
        if self.kind != "json":
            for field in fields(self):
                value = getattr(self, field.name)
                if field.name in _OPTIONS_OF_JSON and value != field.default:
                    raise ConfigError(f"{field.name} is {shown(value)} and kind is {self.kind!r}; only json has it")
        if not self.any_whitespace and self.max_whitespace is not None:
            raise ConfigError(
                f"max_whitespace is {shown(self.max_whitespace)} and any_whitespace is False; there is nothing to limit"
            )

    def _check_trigger(self) -> None:
        for token_id in self.trigger_token_ids:
            if not _is_count(token_id):
                raise ConfigError(f"trigger_token_ids contains {shown(token_id)}; every token id must be an int >= 0")
        if self.bound_token_id is None:
            return
        if not _is_count(self.bound_token_id):
            raise ConfigError(f"bound_token_id is {shown(self.bound_token_id)}; it must be None or an int >= 0")
        if not self.trigger_token_ids:
            raise ConfigError(
                f"bound_token_id is {shown(self.bound_token_id)} and trigger_token_ids is empty; there must be a "
                "trigger that it forces"
            )


def _without_options(kind: str, source: str, trigger: Sequence[int], bound: int | None) -> GrammarSpec:
    return GrammarSpec(kind, source, trigger_token_ids=_as_ids(trigger), bound_token_id=bound)


def _to_source(kind: object, value: Any) -> Any:
    """The source of a kind that has another form than text; as it is for others, which are then refused."""
    if kind == "json":
        return GrammarSpec.json(value).source
    if kind == "choice":
        return GrammarSpec.choice(value).source
    return GrammarSpec.structural_tag(value).source if kind == "structural_tag" else value


def _as_ids(value: object) -> tuple[Any, ...]:
    return as_tuple("trigger_token_ids", value, "token ids >= 0")


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _to_json(name: str, value: object) -> str:
    """Raises ConfigError for what JSON cannot hold."""
    try:
        return json.dumps(dict(value) if isinstance(value, Mapping) else value, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigError(f"{name} is {shown(value)}, which JSON cannot hold: {error}") from None
