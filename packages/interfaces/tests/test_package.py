import ast
import subprocess
import sys
from pathlib import Path

import pytest

import thalweg.interfaces as interfaces

SOURCES = sorted(Path(interfaces.__file__).parent.glob("*.py"))


def test_importing_loads_no_numerical_library() -> None:
    code = (
        "import sys, thalweg.interfaces;"
        "heavy = {'numpy', 'torch', 'tokenizers', 'safetensors', 'tqdm'} & set(sys.modules);"
        "print(sorted(heavy))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout == "[]\n"


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.name)
def test_only_the_standard_library_is_imported_at_run_time(source: Path) -> None:
    tree = ast.parse(source.read_text())
    guarded = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if id(node) in guarded:
            continue
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        for name in names:
            assert name.split(".")[0] in sys.stdlib_module_names or name.startswith("thalweg.interfaces"), name


def test_every_public_name_exists_and_the_list_is_sorted() -> None:
    assert sorted(interfaces.__all__) == list(interfaces.__all__)
    for name in interfaces.__all__:
        assert getattr(interfaces, name) is not None


def test_every_error_is_a_thalweg_error() -> None:
    for name in interfaces.__all__:
        value = getattr(interfaces, name)
        if isinstance(value, type) and issubclass(value, BaseException):
            assert issubclass(value, interfaces.ThalwegError)
    for leaf in (interfaces.ConfigError, interfaces.RequestError):
        assert issubclass(leaf, ValueError)


def test_one_process_is_the_only_parallel_layout() -> None:
    assert interfaces.ParallelConfig() == interfaces.ParallelConfig(expert=1, data=1, context=1, engram=1)
    for name in ("expert", "data", "context", "engram"):
        with pytest.raises(interfaces.ConfigError, match=f"^{name}_parallel_size is 2; "):
            interfaces.ParallelConfig(**{name: 2})
