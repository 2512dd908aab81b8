"""Every Python example of every README runs, and the commands the README promises exist."""

import re
from pathlib import Path

import pytest

from preloaded import PreloadedPython

ROOT = Path(__file__).parent.parent
READMES = [ROOT / "README.md", *sorted(ROOT.glob("packages/*/README.md"))]
DOCUMENTS = [*READMES, *sorted(ROOT.glob("docs/**/*.md"))]
EXAMPLES = [
    pytest.param(block, id=f"{document.relative_to(ROOT)}:{number}")
    for document in DOCUMENTS
    for number, block in enumerate(re.findall(r"^```python\n(.*?)^```", document.read_text(), re.DOTALL | re.MULTILINE))
]

WITH_TESTS = {ROOT / "examples" / name for name in ("quickstart.py", "ranks.py")}
"""In test_greedy_texts.py and test_two_ranks.py, which read what they print."""
SCRIPTS = sorted({*(ROOT / "examples").glob("*.py")} - WITH_TESTS)


@pytest.mark.parametrize("source", EXAMPLES)
def test_an_example_runs(source: str, tmp_path: Path, preloaded: PreloadedPython) -> None:
    script = tmp_path / "example.py"
    script.write_text(source)
    result = preloaded.run(script, cwd=tmp_path)
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_a_script_of_examples_runs(script: Path, tmp_path: Path, preloaded: PreloadedPython) -> None:
    result = preloaded.run(script, cwd=tmp_path)
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("readme", READMES, ids=lambda path: path.parent.name)
def test_every_component_readme_has_an_example(readme: Path) -> None:
    if readme.parent.name != "meta":
        assert "```python\n" in readme.read_text()


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_between_documents_lead_somewhere(document: Path) -> None:
    for link in re.findall(r"\]\(([^)#\s]+)", document.read_text()):
        if not link.startswith(("http:", "https:", "mailto:")):
            assert (document.parent / link).exists(), link
