"""What is wrong with a specification that the grammar library would accept, ignore, or take forever for."""

from __future__ import annotations

from thalweg.interfaces import GrammarSpec
from thalweg.structured.lint.choices import check_choices
from thalweg.structured.lint.ebnf import check_ebnf
from thalweg.structured.lint.findings import Findings
from thalweg.structured.lint.paths import Path
from thalweg.structured.lint.regex import check_regex
from thalweg.structured.lint.schema import check_schema_text
from thalweg.structured.lint.tags import check_tag

__all__ = ["check"]

_CHECKS = {
    "json": check_schema_text,
    "regex": lambda spec, findings: check_regex(spec.source, Path(key="the expression"), findings),
    "ebnf": lambda spec, findings: check_ebnf(spec.source, Path(key="the grammar"), findings),
    "choice": check_choices,
    "structural_tag": check_tag,
}


def check(spec: GrammarSpec) -> tuple[str, ...]:
    """Warnings about a specification, in time linear in its length.

    A warning says what the output will not be held to, or to more than was asked. Raises RequestError naming the place
    and what would do: for what is not enforced, contradicts itself or is too large. What passes may still fail to
    compile.
    """
    findings = Findings(spec.kind)
    _CHECKS[spec.kind](spec, findings)
    return findings.warnings
