"""Components meet only through thalweg.interfaces; kernels may be used by model, cache and engine."""

import ast
from pathlib import Path

import pytest

PACKAGES = Path(__file__).parent.parent / "packages"
ALLOWED = {
    "interfaces": set(),
    "tiny": set(),
    "scheduler": {"interfaces"},
    "kernels": {"interfaces"},
    "cache": {"interfaces", "kernels"},
    "model": {"interfaces", "kernels"},
    "engine": {"interfaces", "scheduler", "kernels", "cache", "model"},
}


def imported_components(source: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(source.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{source}: relative import"
            names |= {f"{node.module}.{alias.name}" for alias in node.names} if node.module == "thalweg" else set()
            names.add(node.module or "")
    return {name.split(".")[1] for name in names if name.startswith("thalweg.")}


def test_every_package_has_a_rule() -> None:
    assert {path.parent.name for path in PACKAGES.glob("*/pyproject.toml")} == {*ALLOWED, "meta"}


@pytest.mark.parametrize("component", sorted(ALLOWED))
def test_imports_go_down_only(component: str) -> None:
    sources = list((PACKAGES / component / "src").rglob("*.py"))
    assert sources
    for source in sources:
        assert imported_components(source) - {component} <= ALLOWED[component], source


@pytest.mark.parametrize("component", sorted(ALLOWED))
def test_nobody_uses_the_private_modules_of_another_component(component: str) -> None:
    for source in (PACKAGES / component / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(source.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("thalweg."):
                owner, *rest = (node.module or "").split(".")[1:]
                assert owner == component or not any(part.startswith("_") for part in rest), source


def test_the_namespace_has_no_root_module() -> None:
    assert list(PACKAGES.glob("*/src/thalweg/__init__.py")) == []


def test_the_scheduler_core_knows_no_python_torch_or_cuda() -> None:
    core = [path for path in (PACKAGES / "scheduler" / "cpp").rglob("*.?pp") if "bindings" not in path.parts]
    assert core
    for path in core:
        includes = [line for line in path.read_text().splitlines() if line.startswith("#include")]
        assert not [line for line in includes if any(word in line for word in ("pybind11", "torch", "cuda", "Python"))]
