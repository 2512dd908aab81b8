"""The page on reproducibility says what the tests say: the table of promises, and for each of its cells a test."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from determinism_testing.table import COLUMNS, TABLE

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "concepts" / "reproducibility.md"
REFERENCE = re.compile(r"`((?:integration_tests|packages)/[\w/]+\.py)(?:::(\w+))?`")


def cells(text: str) -> list[list[str]]:
    """The rows of all tables of a page."""
    lines = [line for line in text.splitlines() if line.startswith("|") and not line.startswith("|---")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def missing(text: str) -> list[str]:
    """Tests and files that a page names, and that do not exist."""
    absent = []
    for path, name in REFERENCE.findall(text):
        source = ROOT / path
        if not source.is_file():
            absent.append(path)
        elif name and name not in names_of_tests(source):
            absent.append(f"{path}::{name}")
    return absent


def names_of_tests(source: Path) -> set[str]:
    return {
        node.name
        for node in ast.parse(source.read_text()).body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    }


def test_the_promises_on_the_page_are_those_that_are_tested() -> None:
    expected = [[row.name, *(answer.value for answer in row.answers)] for row in TABLE]
    table = [row for row in cells(PAGE.read_text()) if len(row) == 1 + len(COLUMNS)]
    assert table == [["requests", *COLUMNS], *expected]


def test_every_promise_names_the_test_that_holds_it() -> None:
    answers = {
        (row.name, what): answer.value for row in TABLE for what, answer in zip(COLUMNS, row.answers, strict=True)
    }
    proofs = {(row[0], row[1]): row[2:] for row in cells(PAGE.read_text()) if len(row) == 4 and row[0] != "requests"}
    assert {cell: proof[0] for cell, proof in proofs.items()} == answers
    named = [REFERENCE.findall(proof[1]) for proof in proofs.values()]
    assert all(len(tests) == 1 and tests[0][1] for tests in named)
    assert len({tests[0] for tests in named}) == len(answers)


def test_every_test_that_the_page_names_exists() -> None:
    text = PAGE.read_text()
    assert missing(text) == []
    assert len(REFERENCE.findall(text)) > 30


def test_every_test_of_the_table_is_named() -> None:
    source = "integration_tests/test_determinism_table.py"
    named = {name for path, name in REFERENCE.findall(PAGE.read_text()) if path == source}
    assert named == names_of_tests(ROOT / source)


@pytest.mark.parametrize(
    ("found", "changed"),
    [
        ("test_coupled_tokens_survive_preemption`", "test_coupled_tokens_survive_preemptions`"),
        ("`integration_tests/test_equality.py::", "`integration_tests/test_equalities.py::"),
    ],
)
def test_a_test_that_does_not_exist_is_noticed(found: str, changed: str) -> None:
    text = PAGE.read_text()
    assert found in text
    assert missing(text.replace(found, changed))
