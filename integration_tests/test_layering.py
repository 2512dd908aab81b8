"""Components meet only through thalweg.interfaces; kernels may be used by model, cache and engine."""

import ast
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement

PACKAGES = Path(__file__).parent.parent / "packages"
ALLOWED = {
    "interfaces": set(),
    "tiny": set(),
    "scheduler": {"interfaces"},
    "kernels": {"interfaces"},
    "dspark": {"interfaces"},
    "eplb": {"interfaces"},
    "structured": {"interfaces"},
    "cache": {"interfaces", "kernels"},
    "model": {"interfaces", "kernels"},
    "engine": {"interfaces", "scheduler", "kernels", "cache", "model", "dspark", "structured"},
}


def run_time_nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """Every node outside `if TYPE_CHECKING`."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        yield node
        yield from run_time_nodes(node)


def imported_modules(source: Path) -> set[str]:
    names: set[str] = set()
    for node in run_time_nodes(ast.parse(source.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add(node.module or "")
    return {name.split(".")[0] for name in names}


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
def test_every_import_of_a_component_is_a_declared_dependency(component: str) -> None:
    project = tomllib.loads((PACKAGES / component / "pyproject.toml").read_text())["project"]
    declared = {Requirement(line).name for line in project["dependencies"]}
    extras = project.get("optional-dependencies", {})
    optional = {Requirement(line).name for extra, lines in extras.items() if extra != "test" for line in lines}
    sources = list((PACKAGES / component / "src").rglob("*.py"))
    third_party = set().union(*map(imported_modules, sources)) - set(sys.stdlib_module_names) - {"thalweg"}
    siblings = set().union(*map(imported_components, sources)) - {component}
    assert third_party | {f"thalweg-{name}" for name in siblings} == declared | optional


@pytest.mark.parametrize("component", sorted(ALLOWED))
def test_nobody_uses_the_private_modules_of_another_component(component: str) -> None:
    for source in (PACKAGES / component / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(source.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("thalweg."):
                owner, *rest = (node.module or "").split(".")[1:]
                assert owner == component or not any(part.startswith("_") for part in rest), source


def test_the_namespace_has_no_root_module() -> None:
    assert list(PACKAGES.glob("*/src/thalweg/__init__.py")) == []


@pytest.mark.parametrize("component", ["eplb", "scheduler"])
def test_a_core_knows_no_python_torch_or_cuda(component: str) -> None:
    core = [path for path in (PACKAGES / component / "cpp").rglob("*.?pp") if "bindings" not in path.parts]
    assert core
    for path in core:
        includes = [line for line in path.read_text().splitlines() if line.startswith("#include")]
        assert not [line for line in includes if any(word in line for word in ("pybind11", "torch", "cuda", "Python"))]
