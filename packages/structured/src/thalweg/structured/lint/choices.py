"""Lists of texts to choose from."""

from __future__ import annotations

from thalweg.interfaces import GrammarSpec, shown
from thalweg.structured.lint.findings import Findings
from thalweg.structured.lint.limits import MAX_CHOICES
from thalweg.structured.lint.paths import ROOT
from thalweg.structured.lint.texts import read_json


def check_choices(spec: GrammarSpec, findings: Findings) -> None:
    """Refuse what is not a list of texts, and long ones."""
    choices = read_json(spec.source, spec.kind)
    if not isinstance(choices, list) or not choices:
        findings.refuse(ROOT, f"is {shown(choices)}; it must be a list of at least one text")
    for index, choice in enumerate(choices):
        if not isinstance(choice, str):
            findings.refuse(ROOT / index, f"is {shown(choice)}; it must be a text")
    if len(choices) > MAX_CHOICES:
        findings.refuse(ROOT, f"has {len(choices)} choices; at most {MAX_CHOICES} are accepted")
