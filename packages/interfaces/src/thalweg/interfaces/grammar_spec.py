"""What an output must look like."""

from __future__ import annotations

from dataclasses import dataclass

GRAMMAR_KINDS = ("json", "regex", "ebnf", "choice", "structural_tag")


@dataclass(frozen=True, slots=True)
class GrammarSpec:
    """A constraint on the output text: exactly one kind and its source."""

    kind: str
    """One of `GRAMMAR_KINDS`."""
    source: str
    """The text of a JSON schema, a regular expression, an EBNF grammar with the rule `root`, a JSON list of the
    choices, or the JSON of a structural tag."""
    strict: bool = True
    """Kind json: objects and arrays that declare some of their members have no others."""
    any_whitespace: bool = True
    """Kind json: white space between tokens is the model's choice; else there is one space after ',' and ':'."""
    max_whitespace: int | None = 32
    """Kind json with any_whitespace: at most so many characters of it in one place; None = any number."""
    trigger_token_ids: tuple[int, ...] = ()
    """The grammar starts after this token sequence has appeared, such as the end of thinking. Empty: at once."""
    bound_token_id: int | None = None
    """From this token on, while the trigger has not appeared, the trigger is forced and the grammar follows."""
